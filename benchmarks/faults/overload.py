"""Measures a service under more load than it can serve: goodput, refusals, retry delays, memory.

    python -m benchmarks.faults.overload
    python -m benchmarks.faults.overload --levels 1,5,10 --seconds 20 --dishonest 0.5 --json figures.json

A simulated H200 with the shape of Llama-3-8B and few rows, so that clients, frontend and core fit on a small
machine; prompts of 64 tokens, answers of 64. First the capacity is measured: requests per second of a closed
loop that keeps all rows busy. Then an open loop (see arrivals.py) offers multiples of it, each for so many
seconds, and counts what began and ended in the last three quarters of them. Goodput is answers per second
whose first token came within --target seconds of the attempt that was taken. Then comes a burst of five times
the capacity, after which there is room for those that came too early: how well were they told when? The last
runs offer five times the capacity and then 0.8 times, and look at every second after the fall: once where
rejected clients come back, up to three times within 30 s, and once where they do not.
"""

import argparse
import asyncio
import json
import statistics
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.faults.health_probe import probing
from benchmarks.service.arrivals import SPOILED_S, Client, Kind, crowd
from benchmarks.service.pipeline import model_folder
from benchmarks.service.processes import by_role, resident_mb
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire_bench.figures import percentile

KIND = Kind(prompt_tokens=64, output_tokens=64, attempts=4, patience=30.0)
ROWS = 4
QUEUED = 16
BURST_S = 3.0
WARM_UP = 0.25
"""Part of a run that counts for nothing."""


@dataclass
class Figures:
    """Of one level. Rates per second, latencies in milliseconds, memory in MB."""

    level: float
    clients: int  # that came while it counted
    offered: float
    goodput: float
    late: float  # answers per second whose first token came after the target
    refused: float
    refusal_p50: float
    refusal_p99: float
    ttft_p50: float
    ttft_p99: float
    bad_refusals: int  # without a hint, or behind a message
    spoiled: int  # clients that the generator sent too late: in no latency
    frontend_mb: float
    engine_mb: float
    health_p50: float = 0.0  # of grpc.health.v1 Check
    health_p99: float = 0.0


def figures(
    level: float, clients: list[Client], span: tuple[float, float], target: float, memory: tuple[float, float]
) -> Figures:
    """What the table shows of a level. span: when it counted."""
    start, end = span
    seconds = end - start
    came = [client for client in clients if start <= client.at < end]
    timely = [client for client in came if client.lag <= SPOILED_S]
    answered = [client for client in clients if client.done is not None and start <= client.done < end]
    good = [
        client for client in answered if client.first is not None and client.first - client.sent <= target
    ]
    first = [1000 * (client.first - client.sent) for client in timely if client.first is not None]
    refusals = [1000 * refusal for client in timely for refusal in client.refusals]
    return Figures(
        level=level,
        clients=len(came),
        offered=len(came) / seconds,
        goodput=len(good) / seconds,
        late=(len(answered) - len(good)) / seconds,
        refused=sum(len(client.refusals) for client in came) / seconds,
        refusal_p50=percentile(refusals, 50),
        refusal_p99=percentile(refusals, 99),
        ttft_p50=percentile(first, 50),
        ttft_p99=percentile(first, 99),
        bad_refusals=sum(client.num_early for client in clients),
        spoiled=len(came) - len(timely),
        frontend_mb=memory[0],
        engine_mb=memory[1],
    )


async def measure_capacity(address: str, seconds: float) -> float:
    """Requests per second when all rows are busy, and a few wait."""
    async with crowd(address, KIND) as people:
        clients = [Client(time.perf_counter(), True) for _ in range(ROWS + QUEUED // 2)]
        end = time.perf_counter() + seconds
        done: list[float] = []

        async def repeat(place: int) -> None:
            while time.perf_counter() < end:
                client = clients[place]
                await people._live(client, place + 1)
                done.append(time.perf_counter())

        await asyncio.gather(*(repeat(place) for place in range(len(clients))))
    counted = [at for at in done if end - 0.75 * seconds <= at < end]
    return len(counted) / (0.75 * seconds)


async def run_level(
    service: Service, level: float, capacity: float, options: argparse.Namespace, seed: int
) -> Figures:
    """One multiple of the capacity."""
    pids = by_role(service.pid)
    async with crowd(service.address, KIND, options.dishonest, seed) as people:
        with probing(service.address) as checks:
            start = time.perf_counter()
            await people.arrive(level * capacity, options.seconds)
            span = start + WARM_UP * options.seconds, time.perf_counter()
            memory = resident_mb(pids["frontend"][0]), resident_mb(pids["engine"][0])
        found = figures(level, people.clients, span, options.target, memory)
        found.health_p50, found.health_p99 = percentile(checks, 50), percentile(checks, 99)
        return found


async def run_burst(service: Service, capacity: float) -> tuple[int, int, float]:
    """How many of a burst were refused, how many were taken when they came back for the first time, and the
    mean of |hint - waited| / waited of those that were taken in the end."""
    async with crowd(service.address, KIND, seed=98) as people:
        await people.arrive(5 * capacity, BURST_S)
        await people.arrive(0.3 * capacity, 5 * BURST_S)
        refused = [client for client in people.clients if client.hints]
        taken = [client for client in refused if client.first is not None]
        errors = [abs(client.hints[0] - client.waited) / client.waited for client in taken]
        at_once = sum(len(client.hints) == 1 for client in taken)
    return len(refused), at_once, statistics.fmean(errors) if errors else float("nan")


async def run_fall(
    service: Service, capacity: float, kind: Kind, options: argparse.Namespace
) -> list[tuple[int, int, float]]:
    """(second after the fall, clients, p99 of the time to the first token in ms) from 5 to 0.8 times."""
    seconds = min(10, round(options.seconds))
    async with crowd(service.address, kind, options.dishonest, seed=99) as people:
        await people.arrive(5 * capacity, options.seconds)
        fall = time.perf_counter()
        await people.arrive(0.8 * capacity, seconds)
        await asyncio.sleep(2)
        rows = []
        for second in range(seconds):
            then = [
                1000 * client.wait
                for client in people.clients
                if client.first is not None and second <= client.sent - fall < second + 1
            ]
            rows.append((second, len(then), percentile(then, 99)))
        return rows


def print_levels(rows: list[Figures]) -> None:
    """One line per level."""
    print(
        "| load | clients | offered/s | goodput/s | late/s | refused/s | refusal p50, p99 ms"
        " | TTFT p50, p99 ms | Check p50, p99 ms | spoiled | frontend, core MB |"
    )
    print("|" + " --- |" * 11)
    for row in rows:
        print(
            f"| {row.level:g}x | {row.clients} | {row.offered:.1f} | {row.goodput:.1f} | {row.late:.1f}"
            f" | {row.refused:.1f} | {row.refusal_p50:.1f}, {row.refusal_p99:.1f}"
            f" | {row.ttft_p50:.0f}, {row.ttft_p99:.0f} | {row.health_p50:.1f}, {row.health_p99:.1f}"
            f" | {row.spoiled} | {row.frontend_mb:.0f}, {row.engine_mb:.0f} |"
        )
    best = max(row.goodput for row in rows)
    for row in rows:
        if row.level >= 10:
            print(f"goodput at {row.level:g}x: {row.goodput / best:.1%} of the best; ", end="")
    print(f"refusals without a hint: {sum(row.bad_refusals for row in rows)}")


async def run(service: Service, options: argparse.Namespace) -> None:
    """Everything, and prints it."""
    capacity = await measure_capacity(service.address, options.seconds / 2)
    print(f"capacity: {capacity:.1f} requests/s; {options.dishonest:.0%} of the clients ignore hints")
    levels = [
        await run_level(service, float(level), capacity, options, seed)
        for seed, level in enumerate(options.levels.split(","))
    ]
    print_levels(levels)
    refused, at_once, error = await run_burst(service, capacity)
    print(f"a burst of 5x for {BURST_S:g} s: {refused} refused, {at_once} taken when they came back first,")
    print(f"mean error of the hints {error:.0%}")
    persistent = await run_fall(service, capacity, KIND, options)
    fall = await run_fall(service, capacity, replace(KIND, attempts=1), options)
    print("| second after the fall from 5x to 0.8x | clients, TTFT p99 ms | if rejected ones give up |")
    print("| --- | --- | --- |")
    for (second, *come_back), (_, *go_away) in zip(persistent, fall, strict=True):
        print(f"| {second} | {', '.join(f'{each:.0f}' for each in come_back)}", end="")
        print(f" | {', '.join(f'{each:.0f}' for each in go_away)} |")
    if options.json:
        content = {"capacity": capacity, "levels": [asdict(level) for level in levels], "fall": fall}
        content["fall_with_returns"] = persistent
        content["burst"] = {"refused": refused, "at_once": at_once, "hint_error": error}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--levels", default="0.8,1,2,5,10,20", help="multiples of the capacity")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each level")
    parser.add_argument("--target", type=float, default=4.0, help="seconds to the first token that are good")
    parser.add_argument("--dishonest", type=float, default=0.0, help="part of clients that ignore hints")
    parser.add_argument("--json", type=Path, metavar="FILE")
    options = parser.parse_args()
    with model_folder() as folder:
        config = ServeConfig(
            model=str(folder),
            port=0,
            device="simulated",
            max_num_seqs=ROWS,
            max_num_queued_reqs=QUEUED,
            max_queue_wait=options.target / 2,
            log_level="warning",
        )
        with Service(config) as service:
            asyncio.run(run(service, options))


if __name__ == "__main__":
    main()
