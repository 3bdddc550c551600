"""Attention for every number of positions around a tile, and every number of (query, head) pairs: against
dense attention in float64, and each query alone."""

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import block_attention, block_kernels
from tests.kernels.block_plans import plan_blocks
from tests.kernels.cpu.attention.test_block_attention import BOTH, TOLERANCES, BlockCase
from tests.kernels.tolerances import assert_close

pytestmark = pytest.mark.cpu_kernels

LENGTHS = [*range(1, 35), 47, 48, 49]


@BOTH
@pytest.mark.parametrize("group", range(1, 10))
def test_rows_of_every_length(group: int, dtype: torch.dtype):
    """Of one KV head, all in one step; the bits of a row alone."""
    case = BlockCase([(length - 1, 1) for length in LENGTHS], group, 1, 40, dtype=dtype)
    found = case.run()
    assert_close(found, case.exact(), *TOLERANCES[dtype])
    for row in (0, 14, 15, 16, 31, 36):
        alone = case.attend(case.query[row : row + 1], case.block_plan(slice(row, row + 1), None))
        assert torch.equal(alone[0], found[row])


@BOTH
@pytest.mark.parametrize("window", [None, 1, 2, 15, 16, 17, 33])
@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (5, 1), (4, 2)])
def test_prompts_of_every_length(heads: int, kv_heads: int, window: int | None, dtype: torch.dtype):
    """Items of up to 8 pairs that end within a token's heads."""
    case = BlockCase(
        [(0, count) for count in (1, 2, 3, 7, 8, 9, 15, 16, 17, 33)], heads, kv_heads, 24, dtype=dtype
    )
    assert_close(case.run(window), case.exact(window), *TOLERANCES[dtype])


@BOTH
@pytest.mark.parametrize("head_dim", [16, 30, 32, 34, 48, 62, 64, 66])
def test_sizes_of_heads_around_vectors(head_dim: int, dtype: torch.dtype):
    """Every number of pairs of sums: values beside the result of a head are another head's."""
    case = BlockCase([(0, 5), (20, 1), (33, 2)], 6, 2, head_dim, dtype=dtype)
    assert_close(case.run(), case.exact(), *TOLERANCES[dtype])


@BOTH
@pytest.mark.parametrize("heads", [1, 3, 4])
def test_nothing_beside_a_result_is_written(heads: int, dtype: torch.dtype):
    """Results of other tokens stay, as where rows of a step are computed by other items."""
    from kernels.cpu.attention.block_attention import attention_record

    case = BlockCase([(17, 1), (0, 3)], heads, 1, 40, dtype=dtype)
    expected, plan = case.run(), case.block_plan(slice(None), None)
    memory = torch.full((6, heads + 1, 40), 7.0, dtype=dtype)
    size = memory.itemsize
    record = attention_record(
        case.query.data_ptr(),
        memory[1:].data_ptr(),
        (case.key_cache, case.value_cache),
        plan.address,
        (size * heads * 40, size * (heads + 1) * 40),
        heads,
        case.scale,
    )
    plan.kernels.team.run_one(plan.kernels.attend, int(plan.made[0]), record, 1)
    assert torch.equal(memory[1:5, :heads], expected)
    memory[1:5, :heads] = 7.0
    assert (memory == 7).all()


@BOTH
def test_the_largest_score_may_be_anywhere(dtype: torch.dtype):
    """One key that outweighs all others, at each position: its value is the result."""
    for length in (1, 2, 15, 16, 17, 32, 33):
        for place in {0, length // 2, length - 1}:
            case = BlockCase([(length - 1, 1)], 2, 1, 16, dtype=dtype)
            key = case.keys[0]
            key.zero_()
            key[place] = 8.0
            case.query.fill_(8.0)
            again = plan_blocks(case.kernels, case.starts, case.counts, case.tables, None, 16, 1)
            slots = torch.from_numpy(case.tables[0, np.arange(length) // 16] * 16 + np.arange(length) % 16)
            case.kernels.store_kv(key, case.values[0], case.key_cache, case.value_cache, slots)
            found = block_attention(case.query, case.key_cache, case.value_cache, again, case.scale)
            assert torch.equal(found[0, 0], case.values[0][place, 0])
            assert torch.equal(found[0, 1], case.values[0][place, 0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_kernels_for_every_group(dtype: torch.dtype):
    """Two rows are joined where there are loops of just as many pairs, and heads of whole lines."""
    joins = {
        (group, head_dim)
        for group in range(1, 9)
        for head_dim in (32, 64, 96, 128)
        if (made := block_kernels(dtype, 16, head_dim, group)) is not None and made.joins
    }
    assert joins == {(group, head_dim) for group in (3, 4) for head_dim in (64, 128)}
