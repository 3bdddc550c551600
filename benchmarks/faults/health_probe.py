"""Measures how fast a service answers grpc.health.v1 Check, which shows how long its event loop was busy.

    python -m benchmarks.faults.health_probe ADDRESS   # the milliseconds of each call, until Ctrl-C

The calls come from a process of their own, ten a second, so that a load generator's own work does not count.
benchmarks.faults.overload and benchmarks.large_prompts run it beside their load.
"""

import argparse
import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import cast

from grpc import aio
from grpc_health.v1 import health_pb2

CHECK = "/grpc.health.v1.Health/Check"
EVERY_S = 0.1
UNANSWERED_S = 10.0
"""A call that takes longer ends, and counts with what it took."""


async def probe(address: str, count: int | None = None) -> None:
    """Prints the milliseconds of each call, of so many or without end."""
    request = health_pb2.HealthCheckRequest().SerializeToString()
    async with aio.insecure_channel(address) as channel:
        check, done = channel.unary_unary(CHECK), 0
        while count is None or done < count:
            begin = time.perf_counter()
            with contextlib.suppress(aio.AioRpcError):
                await check(request, timeout=UNANSWERED_S)
            taken = time.perf_counter() - begin
            print(f"{1000 * taken:.2f}", flush=True)
            done += 1
            await asyncio.sleep(EVERY_S)


@contextlib.contextmanager
def probing(address: str) -> Iterator[list[float]]:
    """Calls Check meanwhile. The list has the milliseconds of all calls once the block has ended."""
    command = [sys.executable, "-m", "benchmarks.faults.health_probe", address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        child.stdout.readline()  # the first one opened the connection
        milliseconds: list[float] = []
        try:
            yield milliseconds
        finally:
            child.terminate()
            milliseconds.extend(float(line) for line in cast(str, child.stdout.read()).splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="HOST:PORT")
    parser.add_argument("--count", type=int, help="of calls; default: until it is ended")
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(probe(options.address, options.count))


if __name__ == "__main__":
    main()
