"""The longest gap of running streams while an adapter loads.

    python -m benchmarks.service.adapter_load MODEL --streams 16 --megabytes 100

MODEL is a folder. Each round makes a new adapter of random numbers on all projections, and takes the times
at which messages of --streams streams arrive, without a load and then during LoadAdapter. A gap is the time
between two messages of one stream. A line has the median and the longest gap of each part; the last line has
the median of the rounds' longest gaps, and of their ratio.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.adapter_files import Shapes, shapes_of, write_adapter
from benchmarks.options import make_parser
from pagewire import AsyncClient, SamplingParams
from pagewire.config import ServeConfig
from pagewire.local_service import Service

LARGEST_RANK = 256


def rank_of(shapes: Shapes, megabytes: float) -> int:
    """Returns the rank of an adapter of about a size in float32."""
    of_one_rank = 4 * sum(rows + columns for rows, columns in shapes.values())
    return min(max(round(megabytes * 1e6 / of_one_rank), 1), LARGEST_RANK)


async def arrivals(client: AsyncClient, number: int, tokens: int) -> list[float]:
    """Returns when each message of a stream came."""
    params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
    return [time.perf_counter() async for _ in client.stream([number + 1, 2, 3, 4], params)]


def gaps_between(times: list[list[float]], begin: float, end: float) -> list[float]:
    """Returns the milliseconds of all gaps that touch a span of time."""
    pairs = (pair for each in times for pair in zip(each, each[1:], strict=False))
    return [1000 * (later - sooner) for sooner, later in pairs if later > begin and sooner < end]


async def one_round(client: AsyncClient, name: str, folder: Path, streams: int, tokens: int) -> list[float]:
    """Returns median and longest gap without a load, then with one, and the load's milliseconds."""
    running = [asyncio.create_task(arrivals(client, number, tokens)) for number in range(streams)]
    await asyncio.sleep(1)
    quiet_from = time.perf_counter()
    await asyncio.sleep(2)
    began = time.perf_counter()
    await client.load_adapter(name, str(folder))
    ended = time.perf_counter()
    times = await asyncio.gather(*running)
    if min(each[-1] for each in times) < ended:
        raise SystemExit("the streams ended before the load did: more --tokens are needed")
    alone = gaps_between(times, quiet_from, began)
    beside = gaps_between(times, began, ended)
    return [
        statistics.median(alone),
        max(alone),
        statistics.median(beside),
        max(beside),
        1000 * (ended - began),
    ]


async def measure(address: str, folder: Path, megabytes: float, options: argparse.Namespace) -> None:
    """Prints the figures of all rounds."""
    print(f"{options.streams} streams; the adapter has {megabytes:.0f} MB; milliseconds")
    print(f"{'alone: median':>14} {'longest':>8} {'loading: median':>16} {'longest':>8} {'load':>8}")
    longest, ratios = [], []
    async with AsyncClient(address) as client:
        for number in range(options.rounds):
            path = folder / f"adapter-{number}"
            found = await one_round(client, path.name, path, options.streams, options.tokens)
            longest.append(found[3])
            ratios.append(found[3] / found[1])
            print(
                f"{found[0]:>14.1f} {found[1]:>8.1f} {found[2]:>16.1f} {found[3]:>8.1f} {found[4]:>8.0f}",
                flush=True,
            )
            await client.unload_adapter(path.name)
    ratio = statistics.median(ratios)
    print(f"longest gap, median of rounds: {statistics.median(longest):.1f} ms, {ratio:.2f} of alone")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=400, help="of each stream")
    parser.add_argument("--megabytes", type=float, default=100, help="of an adapter, to rank 256")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        shapes = shapes_of(options.model)
        rank = rank_of(shapes, options.megabytes)
        sizes = [
            write_adapter(Path(folder) / f"adapter-{number}", shapes, rank, number)
            for number in range(options.rounds)
        ]
        config = ServeConfig(
            model=str(options.model),
            port=0,
            lora_folder=folder,
            max_num_seqs=options.streams,
            log_level="error",
        )
        with Service(config) as service:
            asyncio.run(measure(service.address, Path(folder), sizes[0] / 1e6, options))


if __name__ == "__main__":
    main()
