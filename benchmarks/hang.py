"""Measures how soon a process that hangs is detected: SIGSTOP under a stream, again and again.

    python -m benchmarks.hang --rounds 10

For each victim, from SIGSTOP: until it is killed; until health says NOT_SERVING; until the next token of a
stream. A simulated device, so that none of this is the time of a model; on a machine that does nothing else.
"""

import argparse
import asyncio
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from benchmarks.processes import by_role
from pagewire import AsyncClient
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.config import ServeConfig
from pagewire.local_service import Service

SERVING = health_pb2.HealthCheckResponse.SERVING


async def until_killed(pid: int) -> None:
    """Returns when the process is gone."""
    gone, descriptor = asyncio.Event(), os.pidfd_open(pid)
    asyncio.get_running_loop().add_reader(descriptor, gone.set)
    await gone.wait()
    asyncio.get_running_loop().remove_reader(descriptor)
    os.close(descriptor)


async def until_health(address: str, *, serves: bool) -> None:
    """Returns when a frontend says so."""
    while True:
        try:
            async with grpc.aio.insecure_channel(address) as channel:
                watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
                async for state in watch:
                    if (state.status == SERVING) is serves:
                        return
        except grpc.aio.AioRpcError:
            await asyncio.sleep(0.02)


async def one_round(service: Service, victim: str) -> tuple[float, float, float]:
    """Seconds: (killed, NOT_SERVING, next token). A frontend's health is not asked: others answer for it."""
    async with AsyncClient(service.address) as client:
        await client.wait_ready(60)
        last = time.monotonic()
        longest = 0.0

        async def follow() -> None:
            nonlocal last, longest
            async with client.stream([20, 30], temperature=0.0, max_tokens=900, ignore_eos=True) as stream:
                async for _ in stream:
                    now = time.monotonic()
                    last, longest = now, max(longest, now - last)

        following = asyncio.create_task(follow())
        await asyncio.sleep(random.uniform(0.5, 1.5))
        pid = random.choice(by_role(service.pid)[victim])
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)

        async def took(what: "asyncio.Future[None]") -> float:
            await what
            return time.monotonic() - began

        waits = [asyncio.ensure_future(until_killed(pid))]
        if victim != "frontend":
            waits.append(asyncio.ensure_future(until_health(service.address, serves=False)))
        times = await asyncio.gather(*map(took, waits))
        await following
        return times[0], times[-1] if len(times) > 1 else float("nan"), longest


def main() -> int:
    """Prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "demo"
        shutil.copytree(checkpoint_folder("demo"), model, ignore=shutil.ignore_patterns("*.safetensors"))
        config = ServeConfig(
            model=str(model),
            port=0,
            log_level="error",
            device="simulated",
            profile="cpu",
            max_deaths=1000,
            max_restart_pause=0.0,
            worker_fault=("slow-factor=130",),  # 5 ms a step
        )
        print(f"{'victim':<10}{'n':>4}  {'killed s':>16}  {'NOT_SERVING s':>16}  {'pause s':>16}")
        print(f"{'':<14}" + f"  {'median     max':>16}" * 3)
        with Service(config) as service:
            for victim in ("engine", "worker", "frontend"):
                found = [asyncio.run(one_round(service, victim)) for _ in range(rounds)]
                columns = [
                    f"{statistics.median(each):8.2f}{max(each):8.2f}" for each in zip(*found, strict=True)
                ]
                print(f"{victim:<10}{rounds:>4}  " + "  ".join(columns), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
