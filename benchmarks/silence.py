"""Measures whether a call that says nothing for long stays open, behind nginx and without it.

    python -m benchmarks.silence --minutes 10

The topology of compose.yaml on this machine, with a simulated engine of one row. A stream holds the row for
so long; the calls that wait behind it, by gRPC's own client without a deadline, are silent meanwhile. Then
each of them has to get its tokens.
"""

import argparse
import asyncio
import time

import grpc.aio

from pagewire.v1 import generation_pb2, generation_pb2_grpc
from tests.e2e.topology import NGINX, topology

ENGINE = {"profile": "cpu", "worker_fault": "slow-factor=20000", "max_num_seqs": 1, "max_queue_wait": 0}
HELD, LENGTH = 8000, 4
"""Output tokens of the stream that holds the row, which is cancelled before it has them, and of others."""


def request(seed: int, tokens: int) -> generation_pb2.GenerateRequest:
    """Of so many output tokens."""
    made = generation_pb2.GenerateRequest()
    made.prompt.token_ids.ids.extend([5, seed])
    made.sampling.seed = seed
    made.stopping.max_tokens = tokens
    made.stopping.ignore_eos = True
    return made


async def silent_call(address: str, seed: int) -> tuple[float, int]:
    """Returns the seconds of silence, and the tokens that came then. Raises grpc.aio.AioRpcError."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub, begin, silence, tokens = generation_pb2_grpc.GenerationServiceStub(channel), 0.0, 0.0, 0
        begin = time.perf_counter()
        async for response in stub.Generate(request(seed, LENGTH)):
            silence = silence or time.perf_counter() - begin
            tokens = response.usage.completion_tokens or tokens
    return silence, tokens


async def run(addresses: dict[str, str], minutes: float) -> None:
    """Prints how each call ended. addresses: by name; the first stream goes to the last one."""
    async with grpc.aio.insecure_channel(list(addresses.values())[-1]) as channel:
        holder = generation_pb2_grpc.GenerationServiceStub(channel).Generate(request(1, HELD))
        await holder.read()
        calls = [asyncio.create_task(silent_call(each, 2 + n)) for n, each in enumerate(addresses.values())]
        await asyncio.wait(calls, timeout=60 * minutes)
        holder.cancel()
        await asyncio.wait(calls)
        for name, call in zip(addresses, calls, strict=True):
            if error := call.exception():
                print(f"{name}: {error!r}")
            else:
                silence, tokens = call.result()
                print(f"{name}: {silence / 60:.1f} minutes of silence, then {tokens} of {LENGTH} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    minutes = parser.parse_args().minutes
    with topology(num_frontends=1, engine=ENGINE) as service:
        addresses = {"direct": service.addresses[0]}
        if NGINX:
            service.start_balancer()
            addresses = {"behind nginx": service.address, **addresses}
        asyncio.run(run(addresses, minutes))


if __name__ == "__main__":
    main()
