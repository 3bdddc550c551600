"""`pagewire top`."""

import contextlib
import json
import sys
import time
from collections.abc import Iterator, Sequence
from heapq import nlargest

from pagewire.cli.adapters import adapter_lines
from pagewire.cli.connect import connect
from pagewire.cli.terminal import CLEAR, aligned, as_json
from pagewire.command_config import TopConfig
from pagewire.v1 import admin_pb2, model_pb2
from pagewire_client.errors import Unavailable
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
_MOST_ADAPTERS = 10


def run(config: TopConfig) -> int:
    """Shows the load of a service until Ctrl-C, or once. Returns 0. Raises RpcError."""
    with connect(config) as client, contextlib.suppress(KeyboardInterrupt):
        for load in _loads(client, config):
            if config.json:
                print(json.dumps(as_json(load)), flush=True)
                continue
            info, adapters = client.server_info(), _adapters(client) if load.ranks else []
            page = "\n".join(page_lines(info, load, config.address, time.time(), adapters))
            is_live = sys.stdout.isatty() and not config.once
            print(f"{CLEAR if is_live else ''}{page}", flush=True)
    return 0


def page_lines(
    info: admin_pb2.GetServerInfoResponse,
    load: admin_pb2.Load,
    address: str,
    now: float,
    adapters: Sequence[model_pb2.Adapter] = (),
) -> list[str]:
    """Returns the lines of a page. now: Unix time in seconds. adapters: the busiest are shown."""
    state = admin_pb2.ServerState.Name(info.state).removeprefix("SERVER_STATE_").lower()
    minutes, seconds = divmod(max(int(now - info.start_time.ToSeconds()), 0), 60)
    hours, minutes = divmod(minutes, 60)
    about = f"pagewire {info.version} at {address}: {state}, up {hours}:{minutes:02}:{seconds:02}"
    rows = [_row(rank) for rank in load.ranks]
    lines = [about, "", *aligned([_HEAD, *rows])] if rows else [about, "", "no engine is connected"]
    if adapters:
        busiest = nlargest(_MOST_ADAPTERS, adapters, key=lambda each: (each.streams, each.loaded))
        lines += ["", *adapter_lines(busiest)]
    if len(adapters) > _MOST_ADAPTERS:
        lines.append(f"and {len(adapters) - _MOST_ADAPTERS:,} more (pagewire adapters)")
    return lines


def _adapters(client: Client) -> list[model_pb2.Adapter]:
    """Returns all adapters; none where no engine core can say."""
    try:
        return client.adapters()
    except Unavailable:
        return []


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
