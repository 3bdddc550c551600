"""What goes to host memory comes back bit for bit, and a sequence goes on with it as if nothing had been."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from pagewire.config import WorkerConfig
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from tests.worker.fakes import Driver, initialize, make_runner
from worker.load import load
from worker.memory import swap_space
from worker.memory.host_blocks import choose_num_host_blocks
from worker.memory.swap_space import SwapSpace, make_swap_space
from worker.platforms.cpu import CpuPlatform
from worker.step.rows import PlanError

PROMPT = [5, 100, 33, 210, 7, 8, 9, 9, 9, 250]
MIB = 1 << 20
Checkpoints = Callable[..., Path]


def swap_plan(**columns: list[int]) -> worker_pb2.StepPlan:
    return worker_pb2.StepPlan(**{name: pack_u32(values) for name, values in columns.items()})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("family", "dtype", "cache_dtype"),
    [
        *((family, dtype, "") for family in ("llama", "gpt2", "youtu") for dtype in ("float32", "bfloat16")),
        ("llama", "bfloat16", "fp8_e4m3"),
    ],
)
def test_a_sequence_goes_on_from_host_memory(
    family: str, dtype: str, cache_dtype: str, checkpoint: Checkpoints
):
    """Out, overwritten, back into other blocks: the same logits, bit for bit, as without."""
    folder = checkpoint(family)
    options = {"dtype": dtype, "kv_cache_dtype": cache_dtype, "swap_space_bytes": MIB}
    plain, swapped = (Driver(folder, shuffle=seed, **options) for seed in range(2))
    expected, sequence = plain.add(PROMPT, 12)[0], swapped.add(PROMPT, 12)[0]
    plain.run()
    for _ in range(4):
        swapped.step()
    cache = swapped.runner.backend.cache.pools[0]
    held = sequence.blocks
    contents = cache[:, held].clone()
    host = random.Random(3).sample(range(swapped.ready.num_host_blocks), len(held))
    swapped.runner.execute(swap_plan(swap_out_blocks=held, swap_out_host_blocks=host))
    cache[:, held] = 77
    free = swapped.free[: len(held)]
    table = swap_plan(
        swap_in_host_blocks=host,
        swap_in_blocks=free,
        table_rows=[sequence.row],
        table_starts=[0],
        table_counts=[len(free)],
        table_blocks=free,
    )
    swapped.runner.execute(table)
    assert torch.equal(cache[:, free], contents)
    swapped.free[: len(held)] = held
    for block in free:
        swapped.references[block] = 1
    sequence.blocks = free
    swapped.run()
    assert sequence.output == expected.output
    assert torch.equal(torch.stack(sequence.logits), torch.stack(expected.logits))


def test_copies_happen_in_the_order_of_the_contract(checkpoint: Checkpoints):
    """Out before in before copies: in one plan a block is saved, filled anew, and copied on."""
    runner = make_runner(checkpoint("llama"), swap_space_bytes=MIB)
    cache = runner.backend.cache.pools[0]
    for block in range(4):
        cache[:, block] = block
    runner.execute(swap_plan(swap_out_blocks=[3], swap_out_host_blocks=[9]))
    runner.execute(
        swap_plan(
            swap_out_blocks=[1, 1],
            swap_out_host_blocks=[4, 5],
            swap_in_host_blocks=[9],
            swap_in_blocks=[1],
            copy_sources=[1],
            copy_targets=[2],
        )
    )
    runner.execute(swap_plan(swap_in_host_blocks=[5, 4], swap_in_blocks=[0, 3]))
    assert [cache[0, block].unique().tolist() for block in range(4)] == [[1], [3], [3], [1]]


BAD_PLANS = {
    "swap out differ": {"swap_out_blocks": [1], "swap_out_host_blocks": []},
    "swap in differ": {"swap_in_blocks": [1], "swap_in_host_blocks": []},
    "swapped block is out of range": {"swap_out_blocks": [600], "swap_out_host_blocks": [0]},
    "host block is out of range": {"swap_in_host_blocks": [10**6], "swap_in_blocks": [0]},
    "out to one place": {"swap_out_blocks": [1, 2], "swap_out_host_blocks": [5, 5]},
    "in to one place": {"swap_in_host_blocks": [1, 2], "swap_in_blocks": [5, 5]},
    "written and read": {
        "swap_out_blocks": [1],
        "swap_out_host_blocks": [5],
        "swap_in_host_blocks": [5],
        "swap_in_blocks": [2],
    },
}


@pytest.mark.parametrize("message", BAD_PLANS)
def test_plans_that_do_not_fit(message: str, checkpoint: Checkpoints):
    runner = make_runner(checkpoint("llama"), swap_space_bytes=MIB)
    with pytest.raises(PlanError, match=message):
        runner.execute(swap_plan(**BAD_PLANS[message]))


def test_without_a_swap_space_nothing_is_swapped(checkpoint: Checkpoints):
    runner = make_runner(checkpoint("llama"))
    with pytest.raises(PlanError, match="host block is out of range"):
        runner.execute(swap_plan(swap_out_blocks=[1], swap_out_host_blocks=[0]))


def test_costs_are_measured(checkpoint: Checkpoints):
    folder = checkpoint("llama")
    _, with_swap = load(initialize(folder, swap_space_bytes=MIB), CpuPlatform(WorkerConfig(threads=1)))
    _, without = load(initialize(folder), CpuPlatform(WorkerConfig(threads=1)))
    assert with_swap.num_host_blocks == MIB // (with_swap.kv_cache_bytes // 601)
    assert with_swap.prefill_us_per_token > 0 and with_swap.swap_us_per_block > 0
    assert without.prefill_us_per_token > 0
    assert not without.num_host_blocks and not without.swap_us_per_block


def test_measuring_leaves_contents_alone(checkpoint: Checkpoints):
    runner = make_runner(checkpoint("llama"))
    cache = runner.backend.cache
    (pool,) = cache.pools
    pool.copy_(torch.rand_like(pool))
    before = pool.clone()
    assert SwapSpace(5, cache).measure_us_per_block() > 0
    assert torch.equal(pool, before)


def test_as_many_blocks_as_fit_into_the_space():
    assert choose_num_host_blocks(0, 4096, 100 * MIB) == 0
    assert choose_num_host_blocks(0, 4096, -1) == 0
    assert choose_num_host_blocks(10 * 4096 + 4095, 4096, 100 * MIB) == 10
    assert choose_num_host_blocks(1 << 60, 4096, float("inf")) == (1 << 32) - 1


@pytest.mark.parametrize(
    ("num_bytes", "available", "why"),
    [
        (4095, 100 * MIB, "4095 bytes, but a KV block has 4096"),
        (101 * MIB, 100 * MIB, "101 MiB, but beside weights and KV cache 100 MiB"),
        (MIB, -5, "0 MiB of memory"),
    ],
)
def test_spaces_that_cannot_be(num_bytes: int, available: int, why: str):
    with pytest.raises(StartupError, match=f"--swap-space is .*{why}") as error:
        choose_num_host_blocks(num_bytes, 4096, available)
    assert "--swap-space" in error.value.todo


def test_memory_that_the_cache_has_claimed_is_not_available(
    checkpoint: Checkpoints, monkeypatch: pytest.MonkeyPatch
):
    """Its pages are not written yet, so that the system counts them as free."""
    cache = make_runner(checkpoint("llama")).backend.cache
    monkeypatch.setattr(swap_space, "available_memory", lambda: cache.num_bytes + MIB)
    assert make_swap_space(MIB, cache).num_blocks
    with pytest.raises(StartupError, match="--swap-space"):
        make_swap_space(MIB + 1, cache)
