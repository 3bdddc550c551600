"""How long streams pause when the engine core that has them is killed, and another one goes on with them.

    python -m benchmarks.failover
    python -m benchmarks.failover --kills 50 --streams 64 --engines 3

The whole service on a simulated H200, with a model of the shape of Llama-3-8B (see pipeline.py). Every stream
asks for one core by its rank. In each round one core is killed while all streams run, and a pause is the time
between the last message that a stream had before that and its next one. Every stream is compared with one
that no kill disturbed. The next round begins when the core is back.
"""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio

from benchmarks.pipeline import model_folder
from benchmarks.processes import by_role
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import admin_pb2, admin_pb2_grpc, generation_pb2, generation_pb2_grpc

PROMPT_TOKENS = 64
OUTPUT_TOKENS = 400


@dataclass
class Stream:
    """What one of them received, and when."""

    rank: int
    tokens: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)  # of messages

    def pause(self, killed_at: float) -> float:
        """Seconds without a message around that moment."""
        before = max((at for at in self.times if at <= killed_at), default=killed_at)
        return min((at for at in self.times if at > killed_at), default=before) - before


def make_request(number: int, rank: int) -> generation_pb2.GenerateRequest:
    """Seeded, past EOS."""
    request = generation_pb2.GenerateRequest()
    request.prompt.token_ids.ids.extend(16 + (number * 31 + i) % 1000 for i in range(PROMPT_TOKENS))
    request.sampling.seed = number
    request.stopping.max_tokens = OUTPUT_TOKENS
    request.stopping.ignore_eos = True
    request.output.text = False
    request.output.token_ids = True
    request.routing.data_parallel_rank = rank
    return request


async def read(channel: grpc.aio.Channel, number: int, stream: Stream) -> None:
    """A stream, to its end."""
    call = generation_pb2_grpc.GenerationServiceStub(channel).Generate(make_request(number, stream.rank))
    async for message in call:
        stream.times.append(time.monotonic())
        for sequence in message.sequences:
            if sequence.position != len(stream.tokens):
                raise RuntimeError(f"position {sequence.position} after {len(stream.tokens)} tokens")
            stream.tokens += sequence.token_ids


async def run_round(
    channel: grpc.aio.Channel, streams: int, engines: int, victim: int | None
) -> tuple[list[Stream], float]:
    """All streams, and when the victim was killed: when a random part of the tokens was there."""
    made = [Stream(number % engines) for number in range(streams)]
    tasks = [asyncio.create_task(read(channel, number, stream)) for number, stream in enumerate(made)]
    killed_at = 0.0
    if victim is not None:
        enough = random.uniform(0.1, 0.7) * streams * OUTPUT_TOKENS
        while sum(len(stream.tokens) for stream in made) < enough:
            await asyncio.sleep(0.001)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
    await asyncio.gather(*tasks)
    return made, killed_at


def engine_at(service: Service, rank: int) -> int | None:
    """The process id of a core; None: it is not there."""
    for pid in by_role(service.pid).get("engine", []):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_text().split("\0")
            listen = next(word for word in words if word.startswith("--listen="))
            if listen.endswith(f"-{rank}.ipc" if rank else "frontends.ipc"):
                return pid
    return None


async def all_serve(channel: grpc.aio.Channel, engines: int) -> None:
    """Until no core is away."""
    stub = admin_pb2_grpc.AdminServiceStub(channel)
    while True:
        with contextlib.suppress(grpc.aio.AioRpcError):
            if len((await stub.GetLoad(admin_pb2.GetLoadRequest())).load.ranks) == engines:
                return
        await asyncio.sleep(0.1)


async def measure(service: Service, options: argparse.Namespace) -> tuple[list[float], list[float], int]:
    """Pauses of streams whose core was killed, those of the others, and streams that differ."""
    hit, missed, wrong = [], [], 0
    async with grpc.aio.insecure_channel(service.address) as channel:
        await all_serve(channel, options.engines)
        twins, _ = await run_round(channel, options.streams, options.engines, None)
        for number in range(options.kills):
            rank = number % options.engines
            victim = engine_at(service, rank)
            streams, killed_at = await run_round(channel, options.streams, options.engines, victim)
            for stream, twin in zip(streams, twins, strict=True):
                wrong += stream.tokens != twin.tokens
                if stream.times[-1] > killed_at:
                    (hit if stream.rank == rank else missed).append(stream.pause(killed_at))
            await all_serve(channel, options.engines)
    return hit, missed, wrong


def show(name: str, pauses: list[float]) -> None:
    """One line."""
    ordered = sorted(pauses)
    p50, p99, most = (1e3 * ordered[int(part * (len(ordered) - 1))] for part in (0.5, 0.99, 1.0))
    print(f"{name:<28}n {len(ordered):>6}   p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   max {most:7.1f} ms")


def main() -> None:
    """Runs, prints."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--engines", type=int, default=2)
    options = parser.parse_args()
    with model_folder() as folder:
        config = ServeConfig(
            model=str(folder),
            device="simulated",
            data_parallel_size=options.engines,
            max_deaths=1_000_000,
            max_restart_pause=0.5,
            port=0,
            log_level="error",
        )
        with Service(config) as service:
            hit, missed, wrong = asyncio.run(measure(service, options))
    print(f"{options.kills} kills, {options.engines} cores, {options.streams} streams, {os.cpu_count()} CPUs")
    show("streams of the killed core", hit)
    show("streams of the others", missed)
    print(f"streams that differ from their twins: {wrong}")


if __name__ == "__main__":
    main()
