"""Rows with KV in shuffled blocks, and what attention over them is in float64."""

import numpy as np
import numpy.typing as npt
import torch

from kernels.ops.attention.gather_plan import CacheShape, GatherPlan, plan_attention
from kernels.ops.attention.paged_attention import paged_attention
from kernels.ops.attention.store_kv import slot_rows, store_kv
from tests.kernels.tolerances import random

PAD_BLOCK = 0
IMAGES = [(0, 1), (0, 40), (5, 1), (30, 30), (130, 1), (7, 5), (3000, 7), (600, 20)]
MIXED = [(0, 1), (5, 1), (130, 1), (299, 1), (17, 1), (0, 7), (40, 300), (3, 2), (0, 1)]


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

    def last_seen(self, ends_in_one: bool = True) -> npt.NDArray[np.int64]:
        """[T]: of rows of several queries, all but the first and the last two are of images, a long one and
        one of three tokens. ends_in_one: the last two are of one, too."""
        last = [
            np.arange(start, start + count) for start, count in zip(self.starts, self.counts, strict=True)
        ]
        for row in last:
            if len(row) > 4:
                row[1:-5] = row[max(1, len(row) - 6)]
                row[-5:-2] = row[-3]
                row[-2:] = row[-1] if ends_in_one else row[-2:]
        return np.concatenate(last)

    def plan(
        self,
        window: int | None,
        chunked: bool = False,
        bidirectional: bool = False,
        lasts: npt.NDArray[np.int64] | None = None,
    ) -> GatherPlan:
        rows = self.starts, self.counts, self.tables
        return plan_attention(*rows, window, self.shape, chunked, bidirectional, lasts)

    def run(
        self, window: int | None = None, chunked: bool = False, bidirectional: bool = False
    ) -> torch.Tensor:
        plan = self.plan(window, chunked, bidirectional)
        return paged_attention(self.query, self.key_cache, self.value_cache, plan, self.scale)

    def exact(
        self,
        window: int | None = None,
        soft_cap: float | None = None,
        sinks: torch.Tensor | None = None,
        slopes: torch.Tensor | None = None,
        chunked: bool = False,
        bidirectional: bool = False,
        lasts: npt.NDArray[np.int64] | None = None,
    ) -> torch.Tensor:
        """Dense, in float64, from the keys and values as they were before they went into blocks."""
        parts, first = [], 0
        for row, query in enumerate(self.query.double().split(self.counts.tolist())):
            keys, values = (
                kv[row].double().repeat_interleave(self.group, 1) for kv in (self.keys, self.values)
            )
            scores = torch.einsum("thd,jhd->htj", query, keys) * self.scale
            if soft_cap is not None:
                scores = soft_cap * torch.tanh(scores / soft_cap)
            position = torch.arange(len(query))[:, None] + int(self.starts[row])
            other = torch.arange(len(keys))
            if slopes is not None:
                scores = scores + slopes.double()[:, None, None] * (other - position)
            size = window or len(keys)
            near = other // size == position // size if chunked else other > position - size
            ahead = other >= position + size if bidirectional else other > position
            if lasts is not None:
                ahead = other > torch.from_numpy(lasts[first : first + len(query)])[:, None]
            first += len(query)
            hidden = ahead | ~near
            scores = scores.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                column = sinks.double()[:, None, None].expand(-1, len(query), 1)
                scores = torch.cat((scores, column), -1)
            weights = scores.softmax(-1)[..., : len(keys)]
            parts.append(torch.einsum("htj,jhd->thd", weights, values))
        return torch.cat(parts)
