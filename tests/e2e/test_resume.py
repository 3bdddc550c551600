"""Processes are killed while streams run: each stream equals the same request undisturbed, token for token,
text for text, and bit for bit of its log-probabilities where that is promised, in float32 and in the dtype
that a service chooses by itself."""

import asyncio
import contextlib
import os
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import pytest

from pagewire import AsyncClient, BeamSearch, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.results import Generation, Output
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

SEED = 6
LENGTH = 150
PROMPTS = ("The capital of France is", "1, 2, 3, 4,", "a b c d", "Give me JSON for Italy.")


@dataclass(frozen=True)
class Case:
    prompt: str
    params: SamplingParams
    unary: bool = False


def make_cases() -> list[Case]:
    """20 cases, five of each prompt."""
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
    searches: list[dict[str, object]] = [
        {"temperature": 1.0, "n": 2, "logprobs": 2, "prompt_logprobs": 1},
        {"temperature": 1.5, "n": 2, "best_of": 4, "logprobs": [5, 9]},
        {"temperature": 1.5, "n": 2, "best_of": 3},
        {"n": 2, "beam_search": BeamSearch(3), "prompt_logprobs": 0, "max_tokens": 60},
    ]
    cases = []
    for number, kind in enumerate([*kinds, *kinds, *searches]):
        params = SamplingParams(**{"seed": number, **long, **kind})  # type: ignore[arg-type]
        cases.append(Case(PROMPTS[number % len(PROMPTS)], params, unary=number in (3, 8)))
    return cases


@dataclass
class Run:
    """Concurrent cases and their progress."""

    client: AsyncClient
    cases: list[Case]
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
                assert len(delta.logprobs) == (
                    len(delta.token_ids) if case.params.logprobs is not None else 0
                )
                positions[delta.index] = delta.position + len(delta.token_ids)
                self.num_tokens += len(delta.token_ids)
                self.longest_pause = max(self.longest_pause, time.monotonic() - last)
                last = time.monotonic()
            return stream.generation

    async def all(self) -> list[Generation]:
        return await asyncio.gather(*map(self.one, self.cases))


def find(service: Service, victim: str, dice: random.Random) -> list[int]:
    """Processes: one of a kind, the oldest of a kind, or all of it; none while they are replaced."""
    how, _, kind = victim.rpartition(" ")
    pids = services.processes(service.pid).get(kind, [])
    return {"": pids and [dice.choice(pids)], "oldest": pids[:1], "all": pids}[how]


async def run_with_kills(
    service: Service, cases: list[Case], victims: list[str]
) -> tuple[list[list[Generation]], Run]:
    """Kills one victim after another, each when a random number of tokens has come since the last one. A slow
    client may find the streams over before the last kill: then they are run again."""
    dice = random.Random(SEED)
    async with AsyncClient(service.address) as client:
        run = Run(client, cases)
        rounds = [asyncio.create_task(run.all())]
        for victim in victims:
            wanted = dice.randrange(30, 250)
            enough = run.num_tokens + wanted
            while run.num_tokens < enough or rounds[-1].done():
                if rounds[-1].done():
                    rounds[-1].result()  # raises what has ended them, if anything
                    rounds.append(asyncio.create_task(run.all()))
                    enough = run.num_tokens + wanted
                await asyncio.sleep(0.001)
            while not (pids := find(service, victim, dice)):
                await asyncio.sleep(0.001)
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):  # the last kill has ended it just now
                    os.kill(pid, signal.SIGKILL)
        return await asyncio.gather(*rounds), run


def without_scores(outputs: list[Output]) -> list[Output]:
    return [replace(output, logprobs=[], cumulative_logprob=None) for output in outputs]


def scores_of(result: Generation) -> list[float]:
    """All log-probabilities, in one order: sums too."""
    flat = [score for output in result.outputs for score in output.logprobs] + result.prompt_logprobs
    known = [score for score in flat if score is not None]
    sums = [output.cumulative_logprob for output in result.outputs if output.cumulative_logprob is not None]
    candidates = [candidate.logprob for score in known for candidate in score.candidates]
    return [*(score.logprob for score in known), *candidates, *sums]


@pytest.fixture(scope="module")
def two_cores() -> Iterator[Service]:
    with services.start(dtype="float32", frontends=2, data_parallel_size=2, max_deaths=99) as service:
        yield service


@pytest.fixture(scope="module")
def references(float32: Service) -> list[Generation]:
    """Results without kills."""
    return undisturbed(float32)


def undisturbed(service: Service) -> list[Generation]:
    """Results of all cases while every process lives."""

    async def run() -> list[Generation]:
        async with AsyncClient(service.address) as client:
            return await Run(client, make_cases()).all()

    results = asyncio.run(run())
    assert len({result.text for result in results}) > 8
    return results


@pytest.mark.parametrize(
    "victims",
    [
        ["engine", "worker", "engine", "worker"],
        ["frontend", "worker", "frontend", "engine"],
    ],
    ids=["core-and-worker", "all"],
)
def test_streams_go_on(float32: Service, references: list[Generation], victims: list[str]):
    check(float32, references, victims)


@pytest.mark.parametrize(
    "victims",
    [["oldest engine", "oldest engine", "worker"], ["all engine"]],
    ids=["one-after-the-other", "both-at-once"],
)
def test_streams_go_on_at_another_core(two_cores: Service, references: list[Generation], victims: list[str]):
    """The references come from another service with one core: results do not depend on the core."""
    check(two_cores, references, victims)


def test_streams_go_on_in_the_default_dtype():
    """The dtype that users get: bfloat16 where kernels compute in it, and widened to float32 elsewhere."""
    with services.start(frontends=2, max_deaths=99) as service:
        check(service, undisturbed(service), ["engine", "worker", "frontend", "worker", "engine"])


def check(service: Service, references: list[Generation], victims: list[str]) -> None:
    """All streams equal the undisturbed ones, and leave nothing behind."""
    cases = make_cases()
    with Client(service.address) as client:
        tolerance = 0 if client.model().exactness.bitwise else 1e-3
    rounds, run = asyncio.run(run_with_kills(service, cases, victims))
    results = [result for each in rounds for result in each]
    again = len(rounds)
    for case, result, twin in zip(cases * again, results, references * again, strict=True):
        assert without_scores(result.outputs) == without_scores(twin.outputs), case
        assert scores_of(result) == pytest.approx(scores_of(twin), rel=0, abs=tolerance), case
        assert result.usage.completion_tokens == twin.usage.completion_tokens
        assert result.seed == twin.seed == case.params.seed
    with Client(service.address) as client:
        client.wait_ready()
        services.wait_until(lambda: services.is_idle(client))
    print(f"{len(victims)} kills, {len(results)} requests, longest pause {run.longest_pause:.2f} s")
