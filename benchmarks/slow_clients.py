"""Measures what clients that never read cost a frontend, and whether other clients notice.

    PYTHONPATH=. python -m benchmarks.slow_clients
    PYTHONPATH=. python -m benchmarks.slow_clients --stalled 1000 --readers 64 --tokens 500

A simulated H200 with the shape of Llama-3-8B. Readers stream their answers, alone and then beside clients
that ask for as much and leave the server no room for a byte (tests/stalled.py). Printed is what the frontend
has in memory more per stalled stream when their generation is over and the core's blocks are free. At last
they go.
"""

import argparse
import asyncio
import contextlib
import time

import grpc
import grpc.aio

from benchmarks.pipeline import model_folder
from benchmarks.processes import by_role, resident_mb
from pagewire import Client
from pagewire.config import ServeConfig
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2
from pagewire_bench.figures import percentile
from tests.stalled import StalledClient

PER_CONNECTION = 50
PROMPT = 64


def request(number: int, tokens: int) -> generation_pb2.GenerateRequest:
    """Text and token ids, past EOS."""
    made = generation_pb2.GenerateRequest()
    made.prompt.token_ids.ids.extend(3 + (number * 7919 + place) % 900 for place in range(PROMPT))
    made.sampling.seed = number
    made.stopping.max_tokens = tokens
    made.stopping.ignore_eos = True
    made.output.token_ids = True
    return made


async def read(address: str, readers: int, tokens: int) -> list[float]:
    """Times between messages of so many readers, in milliseconds."""
    gaps: list[float] = []

    async def one(channel: grpc.aio.Channel, number: int) -> None:
        call = channel.unary_stream("/pagewire.v1.GenerationService/Generate")
        stream = call(request(number, tokens).SerializeToString())
        last = None
        while await stream.read() is not grpc.aio.EOF:
            now = time.perf_counter()
            if last is not None:
                gaps.append(1000 * (now - last))
            last = now

    async with grpc.aio.insecure_channel(address) as channel:
        await asyncio.gather(*(one(channel, number) for number in range(readers)))
    return gaps


def wait_until_idle(client: Client) -> None:
    """Nothing runs, and all blocks are free."""
    while True:
        load = client.load().ranks[0]
        if not (load.running_requests or load.waiting_requests or load.kv_used_tokens):
            return
        time.sleep(0.1)


def run(service: Service, options: argparse.Namespace) -> None:
    """Prints as it goes."""
    pid = by_role(service.pid)["frontend"][0]
    gaps = asyncio.run(read(service.address, options.readers, options.tokens))
    alone = resident_mb(pid)
    print(
        f"{options.readers} readers alone: ITL p50, p99 {percentile(gaps, 50):.1f},"
        f" {percentile(gaps, 99):.1f} ms"
    )
    with contextlib.ExitStack() as stack, Client(service.address) as client:
        for first in range(0, options.stalled, PER_CONNECTION):
            stalled = stack.enter_context(StalledClient(service.address))
            for number in range(first, min(first + PER_CONNECTION, options.stalled)):
                stalled.call(request(10_000 + number, options.tokens))
        gaps = asyncio.run(read(service.address, options.readers, options.tokens))
        print(
            f"beside {options.stalled} that never read: ITL p50, p99 {percentile(gaps, 50):.1f},"
            f" {percentile(gaps, 99):.1f} ms"
        )
        wait_until_idle(client)
        grown = 1e3 * (resident_mb(pid) - alone) / options.stalled
        print(
            "their generation is over, all blocks are free;"
            f" the frontend has {grown:.1f} KB more per stalled stream"
        )
    with Client(service.address) as client:
        client.generate([3], max_tokens=1)
        print(f"when they are gone: {resident_mb(pid) - alone:+.1f} MB")


def main() -> None:
    style = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=style)
    parser.add_argument("--stalled", type=int, default=200)
    parser.add_argument("--readers", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=256, help="of each answer")
    options = parser.parse_args()
    with model_folder() as folder:
        config = ServeConfig(
            model=str(folder),
            port=0,
            device="simulated",
            max_num_seqs=1024,
            log_level="warning",
            write_timeout=0,
        )
        with Service(config) as service:
            run(service, options)


if __name__ == "__main__":
    main()
