"""paged_attention against dense attention in float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.ops.attention import gather_plan as module
from kernels.ops.attention.gather_plan import plan_attention
from kernels.ops.attention.paged_attention import paged_attention
from tests.kernels.attention_cases import IMAGES, MIXED, Case
from tests.kernels.references.attention import paged_attention_reference
from tests.kernels.tolerances import TOLERANCES, assert_close


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("window", [None, 1, 3, 40])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_decode_and_prefill_in_one_step(
    block_size: int, window: int | None, dtype: torch.dtype, absolute: float, relative: float
):
    """Nothing of other rows, of unused blocks, or of what an earlier owner left in a block (NaN here)."""
    case = Case(MIXED, dtype, block_size=block_size)
    assert_close(case.run(window), case.exact(window), absolute, relative)


@pytest.mark.parametrize("chunk", [1, 3, 40, 500])
def test_chunks(chunk: int):
    """A query sees its own chunk alone, from its beginning on: by the plan and by the reference."""
    case = Case(MIXED, torch.float32)
    exact = case.exact(chunk, chunked=True)
    assert_close(case.run(chunk, chunked=True), exact, 5e-6, 5e-6)
    blocks: tuple[Any, ...] = (case.starts.tolist(), case.counts.tolist(), case.tables.tolist())
    caches = case.key_cache, case.value_cache
    result = paged_attention_reference(case.query, *caches, *blocks, chunk, case.scale, chunked=True)
    assert_close(result, exact, 5e-6, 5e-6)


@pytest.mark.parametrize("each_alone", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3, 8, 100])
def test_bidirectional(window: int | None, each_alone: bool):
    """Rows of one and of several calls; also each query in a call of its own."""
    case = Case([(0, 1), (0, 7), (0, 4), (0, 300), (0, 1)], torch.float32)
    case.shape = replace(case.shape, each_alone=each_alone)
    exact = case.exact(window, bidirectional=True)
    assert_close(case.run(window, bidirectional=True), exact, 5e-6, 5e-6)


@pytest.mark.parametrize("each_alone", [False, True])
@pytest.mark.parametrize("window", [None, 3, 100])
def test_images_that_are_seen_whole(window: int | None, each_alone: bool):
    case = Case(IMAGES, torch.float32)
    case.shape = replace(case.shape, each_alone=each_alone)
    lasts = case.last_seen()
    plan = case.plan(window, lasts=lasts)
    found = paged_attention(case.query, case.key_cache, case.value_cache, plan, case.scale)
    assert_close(found, case.exact(window, lasts=lasts), 5e-6, 5e-6)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 1), (4, 4, 8), (8, 1, 64), (6, 3, 80)])
def test_head_shapes(heads: int, kv_heads: int, head_dim: int):
    case = Case(MIXED, torch.float32, heads, kv_heads, head_dim)
    assert_close(case.run(), case.exact(), 5e-6, 5e-6)


@pytest.mark.parametrize("soft_cap", [None, 0.7])
@pytest.mark.parametrize("window", [None, 5])
def test_reference(window: int | None, soft_cap: float | None):
    case = Case([(0, 3), (9, 1), (4, 5)], torch.float32)
    blocks: tuple[Any, ...] = (case.starts.tolist(), case.counts.tolist(), case.tables.tolist())
    result = paged_attention_reference(
        case.query, case.key_cache, case.value_cache, *blocks, window, case.scale, soft_cap
    )
    assert_close(result, case.exact(window, soft_cap), 2e-6, 2e-6)
    sinks, slopes = torch.tensor([-2.0, 0, 3, 1, 9, -9]), torch.tensor([0.5, 0.2, 0.1, 0.05, 0.02, 0.01])
    options = window, case.scale, soft_cap, sinks, slopes
    result = paged_attention_reference(case.query, case.key_cache, case.value_cache, *blocks, *options)
    assert_close(result, case.exact(window, soft_cap, sinks, slopes), 2e-6, 2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_company_changes_nothing(dtype: torch.dtype):
    """A row's result is bitwise the same alone and among others, which is what padding every row by
    its own length is for."""
    rows = [(start, 1) for start in range(0, 600, 7)]
    together = Case(rows, dtype)
    result = together.run()
    for row in (0, 3, 20, 60, 85):
        alone = plan_attention(
            together.starts[row : row + 1],
            together.counts[row : row + 1],
            together.tables[row : row + 1],
            None,
            together.shape,
        )
        query = together.query[row : row + 1]
        single = paged_attention(query, together.key_cache, together.value_cache, alone, together.scale)
        assert torch.equal(single[0], result[row])


def test_the_number_of_threads_changes_nothing():
    """Each query alone, of one head: with two threads torch would cut its sums."""
    before = torch.get_num_threads()
    case = Case([(start, 3) for start in range(0, 600, 37)], torch.float32, 1, 1, 101)
    shape = replace(case.shape, each_alone=True)
    plan = plan_attention(case.starts, case.counts, case.tables, None, shape)
    try:
        results = []
        for threads in (1, 2, 4):
            torch.set_num_threads(threads)
            results.append(paged_attention(case.query, case.key_cache, case.value_cache, plan, case.scale))
            assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_groups_are_split_by_size(monkeypatch: pytest.MonkeyPatch):
    case = Case([(start, 1) for start in range(40)], torch.float32)
    whole = case.run()
    assert len(case.plan(None).groups) == 1
    monkeypatch.setattr(module, "GROUP_VALUES", 1)
    assert len(case.plan(None).groups) == 40
    assert torch.equal(case.run(), whole)


def test_a_window_gathers_only_its_blocks():
    plan = Case([(999, 1), (500, 100)], torch.float32).plan(8)
    assert plan.groups[0].mask.shape[-1] == 128  # not 1000
    assert plan.chunks[0].length < 120


def test_padding_tokens_get_zeros():
    """The plan leaves out tokens that stand after the rows."""
    case = Case([(3, 1), (0, 4)], torch.float32)
    padded = torch.cat((case.query, torch.full((3, 6, 24), torch.nan)))
    result = paged_attention(padded, case.key_cache, case.value_cache, case.plan(None), case.scale)
    assert torch.equal(result[:5], case.run())
    assert not result[5:].any()
