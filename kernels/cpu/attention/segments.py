"""kernels.ops.attention.full_attention on a CPU: keys and values are copied into blocks, and the kernels of
kernels.cpu.attention.attention attend to them, each segment as a row that sees all of itself.

A head is a call of its own, whose blocks lie one after the other: threads that compute different queries of
a segment read the same keys at about the same time, from their caches. A query's result has the same bits
whatever other segments there are, and on any number of threads.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch

from kernels.cpu.attention.block_attention import BlockPlan, attention_record, block_kernels, block_plan
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import ITEM_WORDS
from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import QUERIES

if TYPE_CHECKING:  # it compiles when it is imported
    from kernels.cpu.runtime.thread_pool import Team

BLOCK = 16
"""Positions of a block: the fewest that the kernels read at once."""
KEPT = 2
"""Plans that are kept, those that were needed last: a tower has layers that see an image, and others that see
windows of it."""


@dataclass(frozen=True)
class SegmentPlan:
    """What the layers of one image share."""

    plan: BlockPlan  # of one head
    slot_rows: torch.Tensor  # [T * H] int64: see kernels.ops.attention.store_kv
    num_blocks: int  # of a head

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
    ) -> torch.Tensor:
        """[T, H, D] each -> [T, H, D], contiguous."""
        (_, heads, head_dim), kernels = query.shape, self.plan.kernels
        if query.stride()[1:] != (head_dim, 1):
            query = query.contiguous()
        keys, values = (key.new_empty((heads, self.num_blocks, 1, BLOCK, head_dim)) for _ in range(2))
        kernels.store_kv(key, value, keys, values, self.slot_rows)
        out = query.new_empty(query.shape)
        strides = query.itemsize * query.stride(0), out.itemsize * out.stride(0)
        for head in range(heads):
            of_head = query[:, head].data_ptr(), out[:, head].data_ptr()
            cache = keys[head], values[head]
            self.plan.attend(attention_record(*of_head, cache, self.plan.address, strides, 1, scale))
        return out


def plan_segments(
    kernels: BlockKernels, lengths: Sequence[int], num_heads: int, head_dim: int
) -> SegmentPlan:
    """Plans attention of segments that lie one after the other. kernels: of such heads, in groups of one and
    blocks of BLOCK. lengths: of the segments, in tokens."""
    counts = np.array(lengths, np.int64)
    blocks, pieces = -(-counts // BLOCK), -(-counts // QUERIES)
    first_tokens, first_blocks, first_pieces = (np.cumsum(each) - each for each in (counts, blocks, pieces))
    num_blocks = int(blocks.sum())
    tables = np.arange(num_blocks, dtype=np.int64)
    items = np.zeros((int(pieces.sum()), ITEM_WORDS), np.int64)
    of_item = np.repeat(np.arange(len(counts)), pieces)
    first = QUERIES * (np.arange(len(items)) - first_pieces[of_item])
    items[:, AttentionItem.word("table")] = tables.ctypes.data + 8 * first_blocks[of_item]
    items[:, AttentionItem.word("token")] = first_tokens[of_item]
    items[:, AttentionItem.word("first")] = first
    items[:, AttentionItem.word("pairs")] = np.minimum(QUERIES, counts[of_item] - first)
    items[:, AttentionItem.word("part")] = -1
    items[:, AttentionItem.word("end")] = counts[of_item]
    of_token = np.repeat(np.arange(len(counts)), counts)
    slots = np.arange(len(of_token)) + (BLOCK * first_blocks - first_tokens)[of_token]
    slot_rows = torch.from_numpy(slots[:, None] + BLOCK * num_blocks * np.arange(num_heads))
    made, context = np.array([len(items)], np.int64), int(counts.max(initial=0))
    plan = block_plan(kernels, items, made, tables, context, 0, None, (1, head_dim), bidirectional=True)
    return SegmentPlan(plan, slot_rows, num_blocks)


class SegmentPlans:
    """The plans of one dtype that layers share."""

    def __init__(self, dtype: torch.dtype, team: "Team") -> None:
        """dtype: bfloat16 or float32."""
        self._dtype, self._team = dtype, team
        self._kernels: dict[int, BlockKernels | None] = {}  # by head size
        self._plans: dict[tuple[tuple[int, ...], int, int, int], SegmentPlan] = {}

    def find(self, lengths: tuple[int, ...], num_heads: int, head_dim: int) -> SegmentPlan | None:
        """Returns the plan of segments of these lengths; None: the kernels do not take such heads."""
        if head_dim not in self._kernels:
            kernels = block_kernels(self._dtype, BLOCK, head_dim, 1)
            self._kernels[head_dim] = kernels and replace(kernels, team=self._team)
        kernels = self._kernels[head_dim]
        if kernels is None:
            return None
        key = lengths, num_heads, head_dim, self._team.threads  # which have scratch memory
        plan = self._plans.pop(key, None) or plan_segments(kernels, lengths, num_heads, head_dim)
        self._plans[key] = plan
        if len(self._plans) > KEPT:
            del self._plans[next(iter(self._plans))]
        return plan
