"""A CPU worker of two ranks gives the bits of one, and what happens to its processes changes no token."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from pagewire import AsyncClient, BeamSearch, Client, SamplingParams
from pagewire.local_service import Service
from pagewire_client.results import Generation
from pagewire_client.transport import recovery
from tests.checkpoints import make_checkpoint
from tests.e2e import services

pytestmark = pytest.mark.cpu_kernels
SIZES = {"num_attention_heads": 8, "head_dim": 128, "num_key_value_heads": 2, "intermediate_size": 1024}
"""The sums that ranks divide have two leaves."""
SMALL = {"block_size": 16, "max_num_batched_tokens": 48, "num_blocks": 40, "pooling_type": "last"}
"""Prompts are computed in chunks, and there is no room for all of them at once."""
PROMPTS = [[3 + (7 * number + at * at) % 250 for at in range(60 + 25 * number)] for number in range(4)]
TOO_LONG = SamplingParams(temperature=1.0, seed=7, max_tokens=300, ignore_eos=True, n=2)
"""The outputs of this one request fill more than all blocks, so that one of them is preempted."""
ALL = [(PROMPTS[0], TOO_LONG)] + [
    (prompt, params)
    for prompt in PROMPTS
    for params in (
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True, n=2, presence_penalty=0.5),
        SamplingParams(temperature=0.8, seed=6, max_tokens=30, regex="[a-c]*", top_p=0.9),
        SamplingParams(beam_search=BeamSearch(3), max_tokens=10, ignore_eos=True),
    )
]
LONG = [SamplingParams(temperature=seed / 2, seed=seed, max_tokens=300, ignore_eos=True) for seed in range(3)]
HANG_TIMEOUT_S = 6.0


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        return make_checkpoint(family, folder, max_position_embeddings=1024, **SIZES)

    return make


def start(folder: Path, size: int, **flags: Any) -> Service:
    return services.start(folder, device="cpu", tensor_parallel_size=size, **flags)


async def answers(address: str) -> list[object]:
    """To all requests at once."""
    async with AsyncClient(address) as client:
        generations = await asyncio.gather(*(client.generate(prompt, params) for prompt, params in ALL))
        return [*map(content, generations), await client.embed(PROMPTS)]


def content(generation: Generation) -> object:
    """Tokens, and the bits of log-probabilities."""
    outputs = [(list(each.token_ids), repr(each.logprobs), each.text) for each in generation.outputs]
    return outputs, repr(generation.prompt_logprobs)


@pytest.mark.parametrize(
    ("family", "flags"),
    [
        ("llama", {"dtype": "bfloat16"}),
        ("llama", {"dtype": "float32"}),
        ("mixtral", {"dtype": "bfloat16"}),
        ("qwen3", {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e4m3"}),
        ("llama", {"dtype": "bfloat16", "quantization": "int8"}),
        ("llama", {"dtype": "bfloat16", "quantization": "int4"}),
    ],
    ids=["bfloat16", "float32", "experts", "8-bit-cache", "int8", "int4"],
)
def test_two_ranks_have_the_bits_of_one(
    family: str, flags: dict[str, Any], checkpoint: Callable[[str], Path]
) -> None:
    """Greedy and sampled, with grammars, beams and log-probabilities of prompts and outputs; in chunks,
    preempted, and from the prefix cache; and of vectors."""
    folder = checkpoint(family)
    found = []
    for size in (1, 2):
        with start(folder, size, **flags, **SMALL) as service:
            assert len(services.processes(service.pid)["worker"]) == size
            for _ in range(2):
                found.append(asyncio.run(answers(service.address)))
            preempted = services.metric(service.facts, "pagewire_core_preemptions_total")
            assert sum(preempted), "the blocks suffice for all"
    assert found == [found[0]] * 4


@pytest.fixture(scope="module")
def group(checkpoint: Callable[[str], Path]) -> Iterator[Service]:
    flags = {"resume_timeout": 2 * services.PATIENCE_S, "max_deaths": 99, "max_restart_pause": 0.0}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, start(checkpoint("llama"), 2, hang_timeout=HANG_TIMEOUT_S, **flags) as service:
        yield service


async def stream_all(address: str, disturb: Callable[[], None] | None = None) -> list[list[int]]:
    """The tokens of streams that run at once. disturb: called when each has some, and none has all."""
    async with AsyncClient(address) as client:
        received: list[list[int]] = [[] for _ in LONG]
        disturbance = disturb

        async def one(number: int) -> None:
            nonlocal disturbance
            async with client.stream(PROMPTS[number], LONG[number]) as stream:
                async for delta in stream:
                    assert delta.position == len(received[number])
                    received[number] += delta.token_ids
                    if disturbance is not None and all(len(each) >= 20 for each in received):
                        act, disturbance = disturbance, None
                        act()

        await asyncio.gather(*map(one, range(len(LONG))))
        assert disturbance is None, "the streams were too short"
        return received


def wait_until_it_is_whole(group: Service) -> None:
    """Waits until a core and its ranks answer, and nothing runs: streams may have ended before their core."""

    def is_whole() -> bool:
        found = services.processes(group.pid)
        return [len(found.get(name, [])) for name in ("engine", "worker")] == [1, 2]

    services.wait_until(is_whole)
    with Client(group.address) as client:
        client.wait_ready(services.PATIENCE_S)
        services.wait_until(lambda: services.is_idle(client))


@pytest.fixture(scope="module")
def expected(group: Service) -> list[list[int]]:
    return asyncio.run(stream_all(group.address))


def test_a_core_is_killed_and_its_ranks_are_adopted(group: Service, expected: list[list[int]]) -> None:
    before = services.processes(group.pid)
    (core,) = before["engine"]
    with services.all_die([core]):
        assert asyncio.run(stream_all(group.address, lambda: os.kill(core, signal.SIGKILL))) == expected
    wait_until_it_is_whole(group)
    assert services.processes(group.pid)["worker"] == before["worker"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_ends_and_the_group_is_replaced(
    group: Service, expected: list[list[int]], rank: int, number: signal.Signals
) -> None:
    """Whichever rank it is, the other one waits for it in the middle of a step, and ends with it."""
    before = services.processes(group.pid)
    ranks = before["worker"]
    assert len(ranks) == 2
    with services.all_die([*ranks, *before["engine"]]):
        assert asyncio.run(stream_all(group.address, lambda: os.kill(ranks[rank], number))) == expected
    wait_until_it_is_whole(group)


def test_a_core_and_a_rank_are_killed_together(group: Service, expected: list[list[int]]) -> None:
    before = services.processes(group.pid)
    victims = [*before["engine"], before["worker"][1]]

    def kill() -> None:
        for pid in victims:
            os.kill(pid, signal.SIGKILL)

    with services.all_die([*before["engine"], *before["worker"]]):
        assert asyncio.run(stream_all(group.address, kill)) == expected
    wait_until_it_is_whole(group)


def test_standbys_fork_all_ranks_of_the_next_group(checkpoint: Callable[[str], Path]) -> None:
    flags = {"no_standby": False, "resume_timeout": 2 * services.PATIENCE_S}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, start(checkpoint("llama"), 2, **flags) as service:
        services.wait_until(lambda: services.have_standbys(service))
        expected = asyncio.run(stream_all(service.address))
        before = ranks_of(service)
        with services.all_die(before):
            assert (
                asyncio.run(stream_all(service.address, lambda: os.kill(before[1], signal.SIGKILL)))
                == expected
            )
        after = ranks_of(service)
        assert len(after) == 2 and not {*before} & {*after}
        for pid in after:
            assert "--standby" in Path(f"/proc/{pid}/cmdline").read_text(), "it was not forked"


def ranks_of(service: Service) -> list[int]:
    """Which serve."""
    return [pid for pid in services.processes(service.pid)["worker"] if not services.stands_by(pid)]
