"""Requests that kill the engine whenever they run, among many that do not: real processes, real deaths.

Every innocent stream equals its twin from before, token for token and text for text.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from pagewire import AsyncClient, BeamSearch, SamplingParams
from pagewire_client.errors import InternalError, Unavailable
from pagewire_client.results import Generation, Output
from tests.e2e import services

TRIGGER = 77
"""A token that occurs in the culprits' prompts only."""
MOST_DEATHS = 12


@dataclass(frozen=True)
class Case:
    prompt: list[int]
    params: SamplingParams


def innocents(count: int, length: int) -> list[Case]:
    """Plain ones, and some with siblings, beams or log-probabilities."""
    kinds: list[dict[str, object]] = [
        {"temperature": 1.0},
        {"temperature": 1.0, "n": 3},
        {"temperature": 0.0},
        {"temperature": 1.0, "logprobs": 2},
        {"temperature": 1.0, "n": 2, "best_of": 3},
        {"beam_search": BeamSearch(2), "max_tokens": length // 4},
        {"temperature": 1.0, "prompt_logprobs": 1},
    ]
    cases = []
    for number in range(count):
        options = {"seed": number, "max_tokens": length, "ignore_eos": True, **kinds[number % len(kinds)]}
        prompt = [100 + (7 * number + i) % 150 for i in range(4 + 9 * (number % 5))]
        cases.append(Case(prompt, SamplingParams(**options)))  # type: ignore[arg-type]
    return cases


def culprit(**options: object) -> Case:
    params = {"temperature": 1.0, "seed": 99, "max_tokens": 30, "ignore_eos": True, **options}
    return Case([100, TRIGGER, 101], SamplingParams(**params))  # type: ignore[arg-type]


async def run(address: str, cases: list[Case]) -> list[list[Output] | str]:
    """Runs all cases at once. Returns each result or error; requests refused during a restart are retried."""

    async def one(client: AsyncClient, case: Case) -> list[Output] | str:
        while True:
            async with client.stream(case.prompt, case.params) as stream:
                try:
                    async for _ in stream:
                        pass
                    return plain(stream.generation)
                except InternalError as error:
                    return error.reason
                except Unavailable:
                    assert not stream.generation.outputs, "a stream that has begun is not given up"
            await asyncio.sleep(0.1)

    async with AsyncClient(address) as client:
        return await asyncio.gather(*(one(client, case) for case in cases))


def plain(generation: Generation) -> list[Output]:
    """Without log-probabilities: how a step is cut moves their last bits where numbers are real."""
    return [replace(output, logprobs=[], cumulative_logprob=None) for output in generation.outputs]


def check(service: services.Serve, cases: list[Case], culprits: list[Case]) -> int:
    """Runs the cases alone, then with the culprits among them; the deaths that it took."""
    address = service.wait_ready()["address"]
    twins = asyncio.run(run(address, cases))
    assert not any(isinstance(twin, str) for twin in twins)
    place = len(cases) // 2
    results = asyncio.run(run(address, [*cases[:place], *culprits, *cases[place:]]))
    of_culprits = results[place : place + len(culprits)]
    assert [*results[:place], *results[place + len(culprits) :]] == twins
    assert of_culprits == ["REQUEST_QUARANTINED"] * len(culprits)
    service.process.terminate()
    code, words = service.end()
    assert code == 0
    return words.count("starts again")


def test_one_among_63(serve: Callable[..., services.Serve]):
    """The engine dies at its ninth token, when all others are in the middle of theirs."""
    service = serve(
        "--device=simulated",
        "--profile=instant",
        "--log-level=warning",
        f"--worker-fault=die-on-token={TRIGGER}",
        "--worker-fault=die-at-output=9",
    )
    assert check(service, innocents(63, 40), [culprit()]) <= MOST_DEATHS


def test_culprits_of_other_kinds(serve: Callable[..., services.Serve]):
    """A beam search, and a request with siblings; each kills the engine with a generated token."""
    service = serve(
        "--device=simulated",
        "--profile=instant",
        "--log-level=warning",
        f"--worker-fault=die-on-token={TRIGGER}",
        "--worker-fault=die-at-output=6",
    )
    others = [culprit(n=3), culprit(beam_search=BeamSearch(3), n=2, max_tokens=12)]
    assert check(service, innocents(9, 40), others) <= 2 * MOST_DEATHS
