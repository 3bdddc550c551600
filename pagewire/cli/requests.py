"""`pagewire requests` and `pagewire explain`."""

import contextlib
import json
import sys
import time
from itertools import islice
from typing import Any

from pagewire.cli.connect import connect
from pagewire.cli.terminal import CLEAR, aligned, as_json, short_seconds, shortened
from pagewire.command_config import ExplainConfig, RequestsConfig
from pagewire.flags import UsageError
from pagewire.v1 import inspection_pb2 as pb
from pagewire.v1.generation_pb2 import EffectiveParameters

_HEAD = (
    *("request", "tenant", "class", "phase", "waits for"),
    *("core", "age", "prompt", "cached", "output", "blocks", "shared", "preempted"),
)
_TEXT_COLUMNS = 5
_LONGEST = 40
"""Characters of an id or a name."""


def list_requests(config: RequestsConfig) -> int:
    """Lists requests in flight once, or until Ctrl-C. Returns 0. Raises RpcError."""
    with connect(config) as client, contextlib.suppress(KeyboardInterrupt):
        while True:
            pager = client.list_requests(tenant=config.tenant, page_size=min(config.limit, 1000))
            requests = list(islice(pager, config.limit))
            found = pb.ListRequestsResponse(requests=requests, total=pager.total)
            if config.json:
                print(json.dumps(as_json(found)), flush=True)
            else:
                clear = CLEAR if config.watch and sys.stdout.isatty() else ""
                print(clear + "\n".join(request_lines(found)), flush=True)
            if not config.watch:
                break
            time.sleep(config.interval)
    return 0


def request_lines(found: pb.ListRequestsResponse) -> list[str]:
    if not found.requests:
        return ["no requests in flight"]
    lines = aligned([_HEAD, *map(_row, found.requests)], left=_TEXT_COLUMNS)
    left_out = found.total - len(found.requests)
    if left_out > 0:
        lines.append(f"and {left_out:,} more (--limit)")
    return lines


def phase_name(phase: pb.RequestPhase) -> str:
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


_PHASES = ("preprocess", "queue", "prefill", "decode", "preempted")
_CAUSES = ("rows", "blocks", "budget", "trial", "adapter", "kv_transfer", "encoder", "client")
_WAITS = {
    pb.WAIT_CAUSE_TURN: "its turn has not come since the last step",
    pb.WAIT_CAUSE_ROWS: "the first of the queue finds too few free rows (--max-num-seqs)",
    pb.WAIT_CAUSE_BLOCKS: "the first of the queue finds too few free KV blocks (--num-blocks)",
    pb.WAIT_CAUSE_BUDGET: "steps have no tokens left for it (--max-num-batched-tokens)",
    pb.WAIT_CAUSE_TRIAL: "requests that were running when the engine died run first",
    pb.WAIT_CAUSE_GRAMMAR: "its grammar is being compiled",
    pb.WAIT_CAUSE_ADAPTER: "its adapter is not loaded (--lora-memory) or lacks a slot (--max-loras)",
    pb.WAIT_CAUSE_KV_TRANSFER: "blocks of its prefix are copied from another engine core",
    pb.WAIT_CAUSE_ENCODER: "images find no room (--max-num-encoder-tokens, --encoder-cache-tokens)",
    pb.WAIT_CAUSE_ENGINE: "no engine core serves",
}
_MOST_SEQUENCES = 8
_MOST_ENDS = 16


def explain(config: ExplainConfig) -> int:
    """Says where a request's time went and what it waits for. Returns 0. Raises RpcError and UsageError."""
    if not config.request:
        raise UsageError("REQUEST is missing", todo="pagewire requests lists those in flight")
    with connect(config) as client:
        found = client.explain_request(config.request, tenant=config.tenant)
    print(json.dumps(as_json(found)) if config.json else "\n".join(explanation_lines(found)))
    return 0


def explanation_lines(found: pb.ExplainRequestResponse) -> list[str]:
    info = found.request
    lines = [_headline(info), _tokens(info)]
    if info.waits_for:
        lines.append(f"waits: {_WAITS.get(info.waits_for, cause_name(info.waits_for))}")
    if found.HasField("position"):
        lines.append(_position(found.position))
    lines += ["", *_times(info)]
    if info.blocks:
        lines += ["", f"holds {info.blocks:,} KV blocks, {info.shared_blocks:,} of them with other requests"]
        lines += [f"  {each.blocks:,} with {shortened(each.request_id, 60)}" for each in found.sharers]
        if found.num_sharers > len(found.sharers):
            lines.append(f"  and with {found.num_sharers - len(found.sharers):,} more requests")
    if found.swapped_tokens:
        lines.append(f"host memory keeps its keys and values of {found.swapped_tokens:,} tokens")
    if len(found.sequences) > 1:
        lines += ["", *_sequences(found)]
    if found.HasField("parameters"):
        lines += ["", *_parameters(found.parameters)]
    return lines


def _headline(info: pb.RequestInfo) -> str:
    where = f" at core {info.rank}" if info.HasField("rank") else ""
    tenant = f" of {shortened(info.tenant, 60)}" if info.tenant else ""
    age = short_seconds(info.age.ToNanoseconds() / 1e9)
    name = shortened(info.request_id, 60)
    return f"{name}{tenant}, class {info.priority}: {phase_name(info.phase)}{where}, since {age}"


def _tokens(info: pb.RequestInfo) -> str:
    preempted = f", preempted {info.preemptions} times" if info.preemptions else ""
    return (
        f"{info.prompt_tokens:,} tokens of prompt ({info.cached_prompt_tokens:,} cached), "
        f"{info.output_tokens:,} of output{preempted}"
    )


def _position(position: pb.QueuePosition) -> str:
    text = f"queue: {position.sequences_ahead:,} sequences ahead, {position.tokens_ahead:,} tokens to compute"
    if position.tenant_share:
        text += f", its tenant's share {position.tenant_share:.0%}"
    if position.HasField("predicted_wait"):
        text += f", begins in about {short_seconds(position.predicted_wait.ToNanoseconds() / 1e9)}"
    return text


def _times(info: pb.RequestInfo) -> list[str]:
    """Returns a line per phase, and one per cause of waiting that is not 0."""
    total = max(info.timings.total.ToNanoseconds(), 1)
    rows = []
    for name in _PHASES:
        spent = getattr(info.timings, name).ToNanoseconds()
        rows.append((name, short_seconds(spent / 1e9), f"{spent / total:.0%}"))
        if name == "queue":
            rows += _causes(info, total, _CAUSES[:-1])
    rows += _causes(info, total, _CAUSES[-1:])
    return aligned(rows, left=1)


def _causes(info: pb.RequestInfo, total: int, names: tuple[str, ...]) -> list[tuple[str, str, str]]:
    waits = [(name, getattr(info.timings.waits, name).ToNanoseconds()) for name in names]
    return [
        (f"  waiting for {name.replace('_', ' ')}", short_seconds(spent / 1e9), f"{spent / total:.0%}")
        for name, spent in waits
        if spent
    ]


def _sequences(found: pb.ExplainRequestResponse) -> list[str]:
    rows: list[tuple[str, ...]] = [("sequence", "phase", "tokens", "computed", "output", "blocks")]
    for each in found.sequences[:_MOST_SEQUENCES]:
        numbers = (each.tokens, each.computed_tokens, each.output_tokens, each.blocks)
        rows.append((str(each.index), phase_name(each.phase), *(f"{number:,}" for number in numbers)))
    lines = aligned(rows, left=2)
    left_out = found.request.sequences - (len(rows) - 1)
    return [*lines, f"and {left_out} more"] if left_out > 0 else lines


def _parameters(parameters: EffectiveParameters) -> list[str]:
    """Returns a line for each origin of parameters, and one for each token that ends a sequence."""
    by_origin: dict[str, list[str]] = {}
    for part in ("sampling", "stopping"):
        for field, value in getattr(parameters, part).ListFields():
            origin = parameters.origins.get(f"{part}.{field.name}", "")
            by_origin.setdefault(origin, []).append(f"{field.name} {_value(value)}")
    rows = [(f"  {origin}", ", ".join(values)) for origin, values in by_origin.items()]
    lines = ["runs with", *aligned(rows, left=2)]
    ends = [(f"  {end.token_id}", json.dumps(end.text), end.origin) for end in parameters.ends[:_MOST_ENDS]]
    if not ends:
        return [*lines, "no token ends it"]
    left_out = len(parameters.ends) - len(ends)
    lines += ["ends at", *aligned(ends, left=3)]
    return [*lines, f"and at {left_out:,} more tokens"] if left_out else lines


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return f"{value:g}"
    if hasattr(value, "ToJsonString"):  # a duration
        return str(value.ToJsonString())
    return f"of {len(value):,} tokens" if hasattr(value, "__len__") else "set"


COMMANDS = {"requests": (RequestsConfig, list_requests), "explain": (ExplainConfig, explain)}
