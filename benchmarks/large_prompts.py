"""Measures what large prompts of one tenant cost another: its time to the first token, and the event loop.

    python -m benchmarks.large_prompts
    python -m benchmarks.large_prompts --kilobytes 500,1000,3000 --seconds 10

A simulated H200, the shape of Llama-3-8B with a context of 262,144, the demo model's tokenizer. Bob streams
short answers, one after the other; meanwhile Alice sends prompts of text of so many kilobytes, one after the
other. From 500 on they have more tokens than the context and are refused once these are counted; above 3,400
their bytes say so already. A prompt is read by a process beside the frontend, which only receives it. Check:
how fast the frontend answers grpc.health.v1 Check.
"""

import argparse
import asyncio
import contextlib
import time
from collections.abc import Sequence

from benchmarks.health_probe import probing
from benchmarks.pipeline import model_folder
from pagewire import AsyncClient
from pagewire.config import ServeConfig
from pagewire.errors import PagewireError
from pagewire.local_service import Service
from pagewire_bench.figures import percentile

WORDS = "the quick brown fox jumps over the lazy dog, "
CONTEXT = 262_144


async def stream_short_answers(client: AsyncClient, seconds: float) -> list[float]:
    """Milliseconds to the first token of one answer after the other."""
    waits, end = [], time.perf_counter() + seconds
    while (begin := time.perf_counter()) < end:
        async for _ in client.stream(f"{begin}: a short prompt", max_tokens=4, ignore_eos=True, tenant="bob"):
            waits.append(1000 * (time.perf_counter() - begin))
            break
    return waits


async def send_large_prompts(client: AsyncClient, kilobytes: int) -> None:
    """One after the other, without end."""
    text = (WORDS * (1000 * kilobytes // len(WORDS) + 1))[: 1000 * kilobytes]
    while True:
        with contextlib.suppress(PagewireError):
            await client.generate(f"{time.perf_counter()} {text}", max_tokens=1, tenant="alice")


async def measure(address: str, kilobytes: int, seconds: float) -> tuple[list[float], list[float]]:
    """Bob's times to the first token, and those of Check, in milliseconds."""
    async with AsyncClient(address) as bob, AsyncClient(address) as alice:
        await stream_short_answers(bob, 0.5)
        sending = asyncio.create_task(send_large_prompts(alice, kilobytes)) if kilobytes else None
        with probing(address) as checks:
            waits = await stream_short_answers(bob, seconds)
        if sending:
            sending.cancel()
            await asyncio.wait([sending])
    return waits, checks


def print_table(address: str, sizes: Sequence[int], seconds: float) -> None:
    """A line per size."""
    print("| Alice's prompts, kB | Bob's answers | TTFT p50, p99 ms | Check p50, p99, most ms |")
    print("|" + " --- |" * 4)
    for size in sizes:
        waits, checks = asyncio.run(measure(address, size, seconds))
        print(
            f"| {size or 'none'} | {len(waits)} | {percentile(waits, 50):.1f}, {percentile(waits, 99):.1f}"
            f" | {percentile(checks, 50):.1f}, {percentile(checks, 99):.1f}, {max(checks):.1f} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kilobytes", default="500,1000,3000", help="of Alice's prompts")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each size")
    options = parser.parse_args()
    sizes = [0, *(int(size) for size in options.kilobytes.split(","))]
    with model_folder(max_position_embeddings=CONTEXT) as folder:
        config = ServeConfig(model=str(folder), port=0, device="simulated", log_level="error")
        with Service(config) as service:
            print_table(service.address, sizes, options.seconds)


if __name__ == "__main__":
    main()
