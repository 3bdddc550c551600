"""The ledger of a request's time: its parts sum to the whole, whatever happens to the request."""

import asyncio
import os
import signal
import time
from pathlib import Path

from pagewire import AsyncClient, Client, SamplingParams
from pagewire_client.results import Generation
from tests.e2e import services
from tests.e2e.test_simulated import prompt_of, without_weights


async def timed(client: AsyncClient, number: int, params: SamplingParams) -> tuple[Generation, float]:
    """A request, and the seconds that it took as its client sees it."""
    began = time.monotonic()
    result = await client.generate(prompt_of(number), params, timings=True)
    return result, time.monotonic() - began


async def crowd(address: str, numbers: range) -> list[tuple[Generation, float]]:
    """Requests of 1 to 3 sequences, every fourth of one token."""
    async with AsyncClient(address) as client:
        every = [
            SamplingParams(n=1 + number % 3, max_tokens=1 if number % 4 == 0 else 30) for number in numbers
        ]
        runs = (timed(client, number, params) for number, params in zip(numbers, every, strict=True))
        return await asyncio.gather(*runs)


def check(result: Generation, seconds: float) -> None:
    """To the microsecond, which is what the client shows."""
    timings = result.timings
    assert timings is not None
    parts = timings.preprocess, timings.queue, timings.prefill, timings.decode, timings.preempted
    waits = timings.waits
    causes = waits.queue, waits.rows, waits.blocks, waits.budget, waits.trial, waits.adapter
    causes += waits.kv_transfer, waits.encoder
    assert min(causes) >= 0 and abs(sum(causes) - timings.queue) < 1e-5
    assert min(parts) >= 0 and abs(sum(parts) - timings.total) < 1e-5
    assert 0 < timings.total <= seconds
    if result.usage.completion_tokens == 1:
        assert timings.decode == 0.0


def test_parts_sum_to_the_whole_in_a_crowd(tmp_path: Path):
    """Sequences are preempted, siblings fork, the first token comes with the finish."""
    limits = {"max_num_batched_tokens": 48, "max_num_seqs": 8, "num_blocks": 16}
    folder = without_weights(tmp_path)
    with services.start(folder, device="simulated", profile="instant", **limits) as service:
        # Requests whose siblings go on have no pause, and when requests come decides what waits for what.
        results: list[tuple[Generation, float]] = []

        def are_of_all_kinds() -> bool:
            results.extend(asyncio.run(crowd(service.address, range(48))))
            told = [result.timings for result, _ in results if result.timings]
            return any(timings.preempted > 0 for timings in told) and any(
                timings.waits.rows + timings.waits.blocks > 0 for timings in told
            )

        services.wait_until(are_of_all_kinds)
        with Client(service.address) as client:
            assert services.rank_load(client).preemptions > 0
    for result, seconds in results:
        check(result, seconds)
    queues = sorted(result.timings.queue for result, _ in results if result.timings)
    assert queues[-1] > queues[0], "8 run at once: the others wait"


async def resumed(address: str, engine: int) -> tuple[Generation, float]:
    """A stream whose engine is killed after its first tokens."""
    async with AsyncClient(address) as client:
        params = SamplingParams(max_tokens=100)
        await client.wait_ready(services.PATIENCE_S)  # so that connecting is none of the seconds
        began = time.monotonic()
        async with client.stream(prompt_of(1), params, timings=True) as stream:
            async for _ in stream:
                if engine:
                    os.kill(engine, signal.SIGKILL)
                    engine = 0
            return stream.generation, time.monotonic() - began


def test_parts_sum_to_the_whole_when_the_engine_was_lost(tmp_path: Path):
    """The pause belongs to the decode: the first token was there before it."""
    folder = without_weights(tmp_path)
    slowly = {"profile": "cpu", "worker_fault": ("slow-factor=20",)}  # it is not over before the kill
    with services.start(folder, device="simulated", max_deaths=9, **slowly) as service:
        (engine,) = services.processes(service.pid)["engine"]
        result, seconds = asyncio.run(resumed(service.address, engine))
    assert result.usage.completion_tokens == 100
    check(result, seconds)
    assert result.timings is not None and result.timings.decode > seconds / 2
