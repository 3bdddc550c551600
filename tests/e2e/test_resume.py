"""Processes are killed while streams run: each stream equals its twin of a quiet hour, token for token and
text for text. In float32, where the order of a sum moves nothing that matters to a choice."""

import asyncio
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from pagewire import AsyncClient, Client, SamplingParams
from pagewire.client.results import Generation
from pagewire.service import Service
from tests.e2e import services

SEED = 6
LENGTH = 150
PROMPTS = ("The capital of France is", "1, 2, 3, 4,", "a b c d", "Give me JSON for Italy.")


@dataclass(frozen=True)
class Case:
    prompt: str
    params: SamplingParams
    unary: bool = False


def make_cases() -> list[Case]:
    """16 of them, four of each prompt."""
    long = {"max_tokens": LENGTH, "ignore_eos": True}
    kinds: list[dict[str, object]] = [
        {"temperature": 0.0},
        {"temperature": 1.2},
        {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "presence_penalty": 0.2},
        {"temperature": 0.9, "n": 2, "top_p": 0.95},
        {"temperature": 1.5, "stop": ["zqx", "e t", "0, 1"], "min_tokens": 90},
        {"temperature": 1.1, "bad_words": ["the", "a"], "top_k": 50, "n": 2, "stop": ["is is"]},
        {"temperature": 1.3, "ignore_eos": False, "min_tokens": 60},
        {"temperature": 1.0, "logit_bias": {100: 3.0, 101: -3.0}},
    ]
    cases = []
    for number in range(16):
        params = SamplingParams(**{"seed": number, **long, **kinds[number % len(kinds)]})  # type: ignore[arg-type]
        cases.append(Case(PROMPTS[number % len(PROMPTS)], params, unary=number in (3, 8)))
    return cases


@dataclass
class Run:
    """All cases at once, and how far they are."""

    client: AsyncClient
    num_tokens: int = 0
    longest_pause: float = 0.0
    results: list[Generation] = field(default_factory=list)

    async def one(self, case: Case) -> Generation:
        if case.unary:
            return await self.client.generate(case.prompt, case.params)
        positions: dict[int, int] = {}
        last = time.monotonic()
        async with self.client.stream(case.prompt, case.params) as stream:
            async for delta in stream:
                assert delta.position == positions.get(delta.index, 0)
                positions[delta.index] = delta.position + len(delta.token_ids)
                self.num_tokens += len(delta.token_ids)
                self.longest_pause = max(self.longest_pause, time.monotonic() - last)
                last = time.monotonic()
            return stream.generation

    async def all(self) -> list[Generation]:
        return await asyncio.gather(*map(self.one, make_cases()))


async def run_with_kills(service: Service, victims: list[str]) -> tuple[list[Generation], Run]:
    """Kills one victim after another, each when a random number of tokens has come since the last one."""
    dice = random.Random(SEED)
    async with AsyncClient(service.address) as client:
        run = Run(client)
        streams = asyncio.create_task(run.all())
        for victim in victims:
            enough = run.num_tokens + dice.randrange(30, 250)
            while run.num_tokens < enough:
                assert not streams.done(), "the streams were over before the last kill"
                await asyncio.sleep(0.001)
            os.kill(dice.choice(services.processes(service.pid)[victim]), signal.SIGKILL)
        return await streams, run


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with services.start(dtype="float32", frontends=2, max_deaths=99) as service:
        yield service


@pytest.fixture(scope="module")
def twins(service: Service) -> list[Generation]:
    """What nobody disturbed."""

    async def run() -> list[Generation]:
        async with AsyncClient(service.address) as client:
            return await Run(client).all()

    results = asyncio.run(run())
    assert len({result.text for result in results}) > 8
    return results


@pytest.mark.parametrize(
    "victims",
    [
        ["engine", "worker", "engine", "worker"],
        ["frontend"] * 4,
        ["frontend", "worker", "frontend", "engine"],
    ],
    ids=["core-and-worker", "frontends", "all"],
)
def test_streams_go_on(service: Service, twins: list[Generation], victims: list[str]):
    results, run = asyncio.run(run_with_kills(service, victims))
    for case, result, twin in zip(make_cases(), results, twins, strict=True):
        assert result.outputs == twin.outputs, case
        assert result.usage.completion_tokens == twin.usage.completion_tokens
        assert result.seed == twin.seed == case.params.seed
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: services.is_idle(client))
    print(f"{len(victims)} kills, {len(results)} requests, longest pause {run.longest_pause:.2f} s")
