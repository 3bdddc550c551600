"""A CPU worker of several ranks, which share layers or have stages of them, gives the bits of one, and what
happens to its processes changes no token."""

import asyncio
import math
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
from tests.eagle_heads import write_head
from tests.worker.adapters.peft_files import write_adapter
from tests.worker.test_parallel import IN_4_BITS
from tests.worker.weights.formats.quantizers import quantize_checkpoint

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
    for prompt in PROMPTS[1::2]
    for params in (
        SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True, logprobs=3, prompt_logprobs=2),
        SamplingParams(temperature=1.0, seed=5, max_tokens=60, ignore_eos=True, n=2, presence_penalty=0.5),
        SamplingParams(temperature=0.8, seed=6, max_tokens=30, regex="[a-c]*", top_p=0.9),
        SamplingParams(beam_search=BeamSearch(3), max_tokens=10, ignore_eos=True),
    )
]
LONG = [SamplingParams(temperature=seed / 2, seed=seed, max_tokens=150, ignore_eos=True) for seed in range(3)]
HANG_TIMEOUT_S = 6.0
Shape = tuple[int, int]
"""Ranks that share a layer, and stages."""
ALONE, SHARED, STAGED = (1, 1), (2, 1), (1, 2)


SIZES_OF = {
    "qwen3_5": {
        **{"linear_num_value_heads": 8, "linear_num_key_heads": 4, "linear_value_head_dim": 128},
        **{"num_hidden_layers": 4, "layer_types": ["linear_attention", "full_attention"] * 2},
    },
    "deepseek_v3": {"num_key_value_heads": 8, "v_head_dim": 128, "moe_intermediate_size": 512, "head_dim": 8},
    "gemma4": {"global_head_dim": 128, "num_hidden_layers": 6},
    "gptq": {"hidden_size": 64},
    "awq": {"hidden_size": 64},
    "llama": {"hidden_size": 64},
    "falcon_h1": {"mamba_d_ssm": 1024, "mamba_n_heads": 8, "mamba_d_head": 128},
    "youtu": {"head_dim": 8, "num_key_value_heads": 8, "v_head_dim": 128},
}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    def make(family: str) -> Path:
        folder = tmp_path_factory.mktemp(family)
        sizes = {"num_hidden_layers": 3, **SIZES, **SIZES_OF.get(family, {})}
        if family not in IN_4_BITS:
            return make_checkpoint(family, folder, max_position_embeddings=1024, **sizes)
        whole = make_checkpoint("llama", folder / "whole", max_position_embeddings=1024, **sizes)
        quantize_checkpoint(whole, folder / family, *IN_4_BITS[family])
        return folder / family

    return make


def start(folder: Path, shape: Shape, **flags: Any) -> Service:
    tensor, stages = shape
    group = {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages}
    return services.start(folder, device="cpu", **group, **flags)


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
    ("family", "flags", "shapes"),
    [
        ("llama", {"dtype": "bfloat16"}, [SHARED, (1, 3), (2, 2)]),
        ("llama", {"dtype": "float32"}, [(2, 2)]),
        ("mixtral", {"dtype": "bfloat16"}, [SHARED]),
        ("qwen3", {"dtype": "bfloat16", "kv_cache_dtype": "fp8_e4m3"}, [SHARED]),
        ("llama", {"dtype": "bfloat16", "quantization": "int8"}, [SHARED]),
        ("llama", {"dtype": "bfloat16", "quantization": "int4"}, [SHARED]),
        ("qwen3_5", {"dtype": "bfloat16", "quantization": "int8"}, [(2, 2)]),
        ("falcon_h1", {"dtype": "bfloat16"}, [(2, 2)]),
        ("youtu", {"dtype": "bfloat16"}, [SHARED]),
        ("deepseek_v3", {"dtype": "float32", "burst_ms": 0.0}, [STAGED]),
        ("gemma4", {"dtype": "bfloat16"}, [(2, 2)]),
        ("gpt_oss", {"dtype": "bfloat16", "quantization": "int4"}, [SHARED]),
        ("gptq", {"dtype": "bfloat16"}, [SHARED]),
        ("awq", {"dtype": "bfloat16"}, [SHARED]),
    ],
    ids=["bfloat16", "float32", "experts", "8-bit-cache", "int8", "int4", "delta", "mamba", "latents"]
    + ["deepseek_v3", "gemma4", "gpt_oss", "gptq", "awq"],
)
def test_ranks_have_the_bits_of_one(
    family: str, flags: dict[str, Any], shapes: list[Shape], checkpoint: Callable[[str], Path]
) -> None:
    """Greedy and sampled, with grammars, beams and log-probabilities of prompts and outputs; in chunks,
    preempted, and from the prefix cache; and of vectors; and when another core has adopted the ranks."""
    folder, expected = checkpoint(family), None
    for shape in (ALONE, *shapes):
        with start(folder, shape, max_deaths=99, **flags, **SMALL) as service:
            ranks = services.processes(service.pid)["worker"]
            assert len(ranks) == math.prod(shape)
            found = asyncio.run(answers(service.address))
            expected = expected or found
            assert found == expected, shape
            preempted = services.metric(service.facts, "pagewire_core_preemptions_total")
            assert sum(preempted), "the blocks suffice for all"
            if shape != ALONE:
                os.kill(services.processes(service.pid)["engine"][0], signal.SIGKILL)
                wait_until_it_is_whole(service, len(ranks))
                assert services.processes(service.pid)["worker"] == ranks
                assert asyncio.run(answers(service.address)) == expected, shape
                assert sum(services.metric(service.facts, "pagewire_core_prefix_cache_hits_total"))


def test_drafts_of_rank_0_change_no_bit(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Of texts that repeat themselves, of a tenant's outputs and of grammars; by a draft model, and by a head
    that reads hidden states of all stages."""
    folder = checkpoint("llama")
    head = write_head(tmp_path / "head", folder)
    with start(folder, ALONE, dtype="bfloat16", **SMALL) as service:
        expected = asyncio.run(answers(service.address))
    drafters = [
        (SHARED, "lookup:tokens=4,shared=5000", 2),
        (SHARED, f"draft:{folder},tokens=3", 1),
        (STAGED, f"heads:{head},tokens=3", 1),
    ]
    for shape, speculate, times in drafters:
        with start(folder, shape, dtype="bfloat16", speculate=speculate, **SMALL) as service:
            assert [asyncio.run(answers(service.address)) for _ in range(times)] == [expected] * times
            assert sum(services.metric(service.facts, "pagewire_core_draft_tokens_total"))


def test_adapters_have_the_bits_of_one_rank(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Beside requests without, and when another core has adopted the ranks."""
    folder = checkpoint("llama")
    write_adapter(folder, tmp_path / "tuned", merge=False, r=4, target_modules="all-linear", std=0.2)
    params = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True, logprobs=2)

    async def of_both(address: str) -> list[object]:
        async with AsyncClient(address, model="tuned") as tuned, AsyncClient(address) as plain:
            calls = [client.generate(prompt, params) for prompt in PROMPTS for client in (tuned, plain)]
            return [content(each) for each in await asyncio.gather(*calls)]

    found = []
    for shape in (ALONE, (2, 2)):
        with start(folder, shape, dtype="bfloat16", lora_folder=str(tmp_path), max_deaths=99) as service:
            found.append(asyncio.run(of_both(service.address)))
            if shape != ALONE:
                os.kill(services.processes(service.pid)["engine"][0], signal.SIGKILL)
                wait_until_it_is_whole(service, math.prod(shape))
                found.append(asyncio.run(of_both(service.address)))
    assert found[0][0] != found[0][1] and found == [found[0]] * 3


@pytest.fixture(scope="module", params=[SHARED, STAGED], ids=["shared", "staged"])
def group(request: pytest.FixtureRequest, checkpoint: Callable[[str], Path]) -> Iterator[Service]:
    flags = {"resume_timeout": 2 * services.PATIENCE_S, "max_deaths": 99, "max_restart_pause": 0.0}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, start(checkpoint("llama"), request.param, hang_timeout=HANG_TIMEOUT_S, **flags) as service:
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


def wait_until_it_is_whole(group: Service, num_ranks: int = 2) -> None:
    """Waits until a core and its ranks answer, and nothing runs: streams may have ended before their core."""

    def is_whole() -> bool:
        found = services.processes(group.pid)
        return [len(found.get(name, [])) for name in ("engine", "worker")] == [1, num_ranks]

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


@pytest.mark.parametrize(
    ("rank", "number"), [(0, signal.SIGSTOP), (1, signal.SIGKILL)], ids=["0-stopped", "1-killed"]
)
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


def test_standbys_fork_all_ranks_of_the_next_group(checkpoint: Callable[[str], Path]) -> None:
    flags = {"no_standby": False, "resume_timeout": 2 * services.PATIENCE_S}
    patience = mock.patch.object(recovery, "PATIENCE_S", 2 * services.PATIENCE_S)
    with patience, start(checkpoint("llama"), SHARED, **flags) as service:
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
