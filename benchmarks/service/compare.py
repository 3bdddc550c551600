"""Measures two services, of different flags or versions, in turns and prints the ratio of each figure.

    python -m benchmarks.service.compare demo --scheduling=sync -- --scheduling=ahead
    python -m benchmarks.service.compare demo --repeats 9 --block-size=16 -- --block-size=32
    git worktree add ../before v2026.10 && python -m benchmarks.service.compare demo --checkout ../before

Both services run all the time, and each repetition goes to the one and then to the other, so that
whatever else the machine does meets both. The ratio is second / first: its median over the repetitions,
with the least and the greatest. --checkout: the first service runs another checkout of this repository, in
this one's environment. Workloads and figures are those of benchmarks/service/serve.py; CPU is the
processor time of the frontends.
"""

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from unittest.mock import patch

from benchmarks.options import make_parser, split_at_dashes
from benchmarks.service import serve
from benchmarks.service.breakdown import spread
from benchmarks.service.processes import by_role, processor_seconds
from pagewire import AsyncClient, flags, rooms
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire_bench.workloads import ALL, Request

COLUMNS = {**serve.COLUMNS, "cpu": "CPU"}

Measured = dict[str, float]
"""A repetition, by the names of COLUMNS."""


async def measure(services: Sequence[Service], names: Sequence[str], repeats: int) -> None:
    """Prints a line for each workload when it is done."""
    frontends = [by_role(service.pid)["frontend"] for service in services]
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(service.address)) for service in services]
        models = [await client.model() for client in clients]
        context = min(model.max_model_len for model in models)
        for name in names:
            pairs = []
            for repetition in range(repeats + 1):
                requests = ALL[name].requests(repetition, models[0].vocab_size, context)
                sides = zip(clients, frontends, strict=True)
                pairs.append([await measure_once(client, pids, requests) for client, pids in sides])
            print_row(name, pairs[1:])


async def measure_once(client: AsyncClient, pids: list[int], requests: Sequence[Request]) -> Measured:
    """One repetition at one service. pids: of its frontends."""
    before = sum(map(processor_seconds, pids))
    figures = asdict(await serve.run_once(client, requests))
    return {**figures, "cpu": sum(map(processor_seconds, pids)) - before}


def print_row(name: str, pairs: list[list[Measured]]) -> None:
    """The ratio of every figure."""
    cells = []
    for column in COLUMNS:
        first, second = ([figures[column] for figures in side] for side in zip(*pairs, strict=True))
        ratios = [b / a for a, b in zip(first, second, strict=True) if a]
        cells.append(spread(ratios) if ratios else "-")
    print(f"{name:<9}" + "".join(f"{cell:>20}" for cell in cells), flush=True)


@contextlib.contextmanager
def importing(checkout: Path | None) -> Iterator[None]:
    """Services that start meanwhile import the packages of that folder. None: those of this checkout."""
    with patch.object(rooms, "folder", lambda: checkout) if checkout else contextlib.nullcontext():
        yield


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model")
    parser.add_argument("--workloads", default="single,batch,ragged", help="default: %(default)s")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--checkout", type=Path, metavar="FOLDER", help="of the first service")
    ours, second = split_at_dashes()
    options, first = parser.parse_known_args(ours)
    with contextlib.ExitStack() as stack:
        services = []
        checkout = options.checkout and options.checkout.resolve(strict=True)
        for folder, given in ((checkout, first), (None, second)):
            arguments = ["--port=0", "--log-level=warning", options.model, *given]
            with importing(folder):
                service = Service(flags.parse(ServeConfig, arguments, command="serve"))
            services.append(stack.enter_context(service))
        print(f"{'workload':<9}" + "".join(f"{title:>20}" for title in COLUMNS.values()), flush=True)
        asyncio.run(measure(services, options.workloads.split(","), options.repeats))


if __name__ == "__main__":
    main()
