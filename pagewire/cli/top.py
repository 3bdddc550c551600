"""`pagewire top`."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator

from pagewire.cli.connect import connect
from pagewire.cli.terminal import CLEAR, aligned, as_json
from pagewire.command_config import TopConfig
from pagewire.v1 import admin_pb2
from pagewire_client.sync import Client

_HEAD = (
    "engine",
    "running",
    "waiting",
    "to compute",
    "KV cache",
    "",
    "tokens/s",
    "hits",
    "preempted",
    "refused",
)
_BAR = 20


def run(config: TopConfig) -> int:
    """Shows the load of a service until Ctrl-C, or once. Returns 0. Raises RpcError."""
    with connect(config) as client, contextlib.suppress(KeyboardInterrupt):
        for load in _loads(client, config):
            if config.json:
                print(json.dumps(as_json(load)), flush=True)
                continue
            page = "\n".join(page_lines(client.server_info(), load, config.address, time.time()))
            is_live = sys.stdout.isatty() and not config.once
            print(f"{CLEAR if is_live else ''}{page}", flush=True)
    return 0


def page_lines(
    info: admin_pb2.GetServerInfoResponse, load: admin_pb2.Load, address: str, now: float
) -> list[str]:
    """Returns the lines of a page. now: Unix time in seconds."""
    state = admin_pb2.ServerState.Name(info.state).removeprefix("SERVER_STATE_").lower()
    minutes, seconds = divmod(max(int(now - info.start_time.ToSeconds()), 0), 60)
    hours, minutes = divmod(minutes, 60)
    about = f"pagewire {info.version} at {address}: {state}, up {hours}:{minutes:02}:{seconds:02}"
    rows = [_row(rank) for rank in load.ranks]
    return [about, "", *aligned([_HEAD, *rows])] if rows else [about, "", "no engine is connected"]


def _loads(client: Client, config: TopConfig) -> Iterator[admin_pb2.Load]:
    """Yields the load once, or now and whenever it changes."""
    if config.once:
        yield client.load()
    else:
        yield from client.watch_load(config.interval)


def _row(rank: admin_pb2.RankLoad) -> tuple[str, ...]:
    usage = rank.kv_used_tokens / rank.kv_total_tokens if rank.kv_total_tokens else 0.0
    return (
        str(rank.rank),
        f"{rank.running_requests:,}",
        f"{rank.waiting_requests:,}",
        f"{rank.waiting_uncached_tokens:,}",
        f"{usage:.1%}",
        ("#" * round(usage * _BAR)).ljust(_BAR, "."),
        f"{rank.output_tokens_per_second:,.1f}",
        f"{rank.prefix_cache_hit_rate:.0%}",
        f"{rank.preemptions:,}",
        f"{sum(rank.refused_requests.values()):,}",
    )


COMMANDS = {"top": (TopConfig, run)}
