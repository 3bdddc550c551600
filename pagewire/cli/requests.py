"""`pagewire requests`."""

import contextlib
import json
import sys
import time
from typing import Any

from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

from pagewire.cli.common.connect import connect
from pagewire.cli.common.tables import aligned, short_seconds, shortened
from pagewire.command_config import RequestsConfig
from pagewire.v1 import inspection_pb2 as pb

CONFIG = RequestsConfig

_HEAD = (
    *("request", "tenant", "class", "phase", "waits for"),
    *("core", "age", "prompt", "cached", "output", "blocks", "shared", "preempted"),
)
_TEXT_COLUMNS = 5
_LONGEST = 40
"""Characters of an id or a name."""
_CLEAR = "\x1b[H\x1b[J"
"""Cursor to the first column of the first line, and everything after it erased."""


def run(config: RequestsConfig) -> int:
    """Lists requests in flight once, or until Ctrl-C. Returns 0. Raises RpcError."""
    with connect(config) as client, contextlib.suppress(KeyboardInterrupt):
        while True:
            found = client.list_requests(limit=config.limit, tenant=config.tenant)
            if config.json:
                print(json.dumps(as_json(found)), flush=True)
            else:
                clear = _CLEAR if config.watch and sys.stdout.isatty() else ""
                print(clear + "\n".join(page_lines(found)), flush=True)
            if not config.watch:
                break
            time.sleep(config.interval)
    return 0


def as_json(message: Message) -> dict[str, Any]:
    """Returns a message as JSON, with the names of the protocol, and zeros where it has none."""
    return MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)


def page_lines(found: pb.ListRequestsResponse) -> list[str]:
    """Returns the lines of the table."""
    if not found.requests:
        return ["no requests in flight"]
    lines = aligned([_HEAD, *map(_row, found.requests)], left=_TEXT_COLUMNS)
    left_out = found.total - len(found.requests)
    if left_out > 0:
        lines.append(f"and {left_out:,} more (--limit)")
    return lines


def phase_name(phase: pb.RequestPhase) -> str:
    """Returns a phase in words."""
    return pb.RequestPhase.Name(phase).removeprefix("REQUEST_PHASE_").replace("_", " ").lower()


def cause_name(cause: pb.WaitCause) -> str:
    """Returns what a request waits for in words; empty: nothing."""
    if cause == pb.WAIT_CAUSE_UNSPECIFIED:
        return ""
    return pb.WaitCause.Name(cause).removeprefix("WAIT_CAUSE_").replace("_", " ").lower()


def _row(info: pb.RequestInfo) -> tuple[str, ...]:
    return (
        shortened(info.request_id, _LONGEST),
        shortened(info.tenant, _LONGEST),
        str(info.priority),
        phase_name(info.phase),
        cause_name(info.waits_for),
        str(info.rank) if info.HasField("rank") else "",
        short_seconds(info.age.ToNanoseconds() / 1e9),
        f"{info.prompt_tokens:,}",
        f"{info.cached_prompt_tokens:,}",
        f"{info.output_tokens:,}",
        f"{info.blocks:,}",
        f"{info.shared_blocks:,}",
        str(info.preemptions),
    )
