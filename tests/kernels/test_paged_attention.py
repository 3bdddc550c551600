"""paged_attention against dense attention in float64."""

from typing import Any

import numpy as np
import pytest
import torch

from kernels import paged_attention as module
from kernels.paged_attention import (
    AttentionPlan,
    CacheShape,
    paged_attention,
    paged_attention_reference,
    plan_attention,
)
from kernels.store_kv import slot_rows, store_kv
from tests.kernels.tolerances import TOLERANCES, assert_close, random

PAD_BLOCK = 0


class Case:
    """Rows with KV in shuffled blocks of a cache in which everything else is NaN."""

    def __init__(
        self,
        rows: list[tuple[int, int]],
        dtype: torch.dtype,
        heads: int = 6,
        kv_heads: int = 2,
        head_dim: int = 24,
        block_size: int = 4,
        scale: float = 0.3,
    ) -> None:
        """rows: (start, count), position of the first query and number of queries."""
        self.starts, self.counts = (np.array(side) for side in zip(*rows, strict=True))
        self.scale, self.group = scale, heads // kv_heads
        ends = self.starts + self.counts
        needed = -(-ends // block_size)
        free = np.random.default_rng(0).permutation(np.arange(1, needed.sum() + 5))
        self.tables = np.zeros((len(rows), needed.max()), np.int64)
        shape = (len(free) + 1, kv_heads, block_size, head_dim)
        self.key_cache, self.value_cache = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
        self.key_cache[PAD_BLOCK] = self.value_cache[PAD_BLOCK] = 0
        self.keys, self.values = [], []  # dense, by row
        at = 0
        for row, end in enumerate(ends):
            self.tables[row, : needed[row]] = free[at : at + needed[row]]
            at += needed[row]
            positions = np.arange(end)
            slots = self.tables[row, positions // block_size] * block_size + positions % block_size
            key, value = (random(end, kv_heads, head_dim, dtype=dtype, seed=2 * row + s) for s in (0, 1))
            store = slot_rows(torch.from_numpy(slots), kv_heads, block_size)
            store_kv(key, value, self.key_cache, self.value_cache, store)
            self.keys.append(key)
            self.values.append(value)
        self.query = random(int(self.counts.sum()), heads, head_dim, dtype=dtype, seed=99)
        self.shape = CacheShape(kv_heads, head_dim, block_size, PAD_BLOCK, dtype, torch.device("cpu"))

    def plan(self, window: int | None) -> AttentionPlan:
        return plan_attention(self.starts, self.counts, self.tables, window, self.shape)

    def run(self, window: int | None = None) -> torch.Tensor:
        return paged_attention(self.query, self.key_cache, self.value_cache, self.plan(window), self.scale)

    def exact(self, window: int | None = None) -> torch.Tensor:
        """Dense, in float64, from the keys and values as they were before they went into blocks."""
        parts = []
        for row, query in enumerate(self.query.double().split(self.counts.tolist())):
            keys, values = (
                kv[row].double().repeat_interleave(self.group, 1) for kv in (self.keys, self.values)
            )
            scores = torch.einsum("thd,jhd->htj", query, keys) * self.scale
            position = torch.arange(len(query))[:, None] + int(self.starts[row])
            other = torch.arange(len(keys))
            hidden = (other > position) | (other <= position - (window or len(keys)))
            weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
            parts.append(torch.einsum("htj,jhd->thd", weights, values))
        return torch.cat(parts)


MIXED = [(0, 1), (5, 1), (130, 1), (299, 1), (17, 1), (0, 7), (40, 300), (3, 2), (0, 1)]


@pytest.mark.parametrize(("dtype", "absolute", "relative"), TOLERANCES)
@pytest.mark.parametrize("window", [None, 1, 3, 40])
@pytest.mark.parametrize("block_size", [1, 4, 16])
def test_decode_and_prefill_in_one_step(
    block_size: int, window: int | None, dtype: torch.dtype, absolute: float, relative: float
):
    """Nothing of other rows, of unused blocks, or of what an earlier owner left in a block (NaN here)."""
    case = Case(MIXED, dtype, block_size=block_size)
    assert_close(case.run(window), case.exact(window), absolute, relative)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(1, 1, 1), (4, 4, 8), (8, 1, 64), (6, 3, 80)])
def test_head_shapes(heads: int, kv_heads: int, head_dim: int):
    case = Case(MIXED, torch.float32, heads, kv_heads, head_dim)
    assert_close(case.run(), case.exact(), 5e-6, 5e-6)


@pytest.mark.parametrize("window", [None, 5])
def test_reference(window: int | None):
    case = Case([(0, 3), (9, 1), (4, 5)], torch.float32)
    blocks: tuple[Any, ...] = (case.starts.tolist(), case.counts.tolist(), case.tables.tolist())
    result = paged_attention_reference(
        case.query, case.key_cache, case.value_cache, *blocks, window, case.scale
    )
    assert_close(result, case.exact(window), 2e-6, 2e-6)


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
