"""What a service costs before it does much: time to ready, first token when idle, resident memory.

    python benchmarks/startup.py [MODEL] [--json FILE]

Memory is the resident set of each process, idle and while 256 streams are open at once.
"""

import argparse
import asyncio
import json
import statistics
import time
from pathlib import Path

from processes import by_role, resident_mb

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.config import DEMO_MODEL, ServeConfig
from pagewire.service import Service

STREAMS = 256


def time_to_ready(model: str) -> float:
    """Seconds from nothing to ready."""
    start = time.perf_counter()
    with Service(ServeConfig(model=model, port=0, log_level="warning")):
        return time.perf_counter() - start


def first_tokens(address: str, times: int) -> list[float]:
    """Milliseconds to the first token of an idle service, again and again."""
    results = []
    with Client(address) as client:
        for _ in range(times):
            time.sleep(0.1)
            start = time.perf_counter()
            with client.stream("The capital of France is", temperature=0, max_tokens=2) as stream:
                next(stream)
                results.append(1000 * (time.perf_counter() - start))
    return results[1:]


async def open_streams(address: str, pids: dict[str, int]) -> dict[str, float]:
    """Resident sets while all streams are open and have had their first tokens."""
    params = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
    async with AsyncClient(address) as client:
        streams = [client.stream(f"Stream number {number}:", params) for number in range(STREAMS)]
        await asyncio.gather(*(anext(stream) for stream in streams))
        sizes = {role: resident_mb(pid) for role, pid in pids.items()}
        await asyncio.gather(*(stream.result() for stream in streams))
    return sizes


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default=DEMO_MODEL)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", metavar="FILE", type=Path)
    options = parser.parse_args()
    ready = [time_to_ready(options.model) for _ in range(options.repeats)]
    with Service(ServeConfig(model=options.model, port=0, log_level="warning")) as service:
        pids = {role: pids[0] for role, pids in by_role(service.pid).items()}
        first = first_tokens(service.address, 21)
        idle = {role: resident_mb(pid) for role, pid in pids.items()}
        busy = asyncio.run(open_streams(service.address, pids))
    print(f"time to ready: {statistics.median(ready):.2f} s ({min(ready):.2f}..{max(ready):.2f})")
    print(
        f"first token, idle service: {statistics.median(first):.1f} ms ({min(first):.1f}..{max(first):.1f})"
    )
    for role in pids:
        print(f"{role}: {idle[role]:.0f} MB idle, {busy[role]:.0f} MB with {STREAMS} streams")
    if options.json:
        figures = {"ready_s": ready, "first_token_ms": first, "idle_mb": idle, "busy_mb": busy}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
