"""What attention over blocks is divided into: items, for any thread to take.

An item is up to 8 (query, head) pairs of a row that share a KV head: the group of one decoding token, or some
tokens of a prompt. Long rows that decode are split into parts, an item each. Two rows that decode and begin
with the same blocks are computed together, where that leaves work enough for every thread: the second row's
item is paired with the first. kernels.cpu.step.prepare_inputs lists them, in compiled code.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import PART, QUERIES
from kernels.ops.attention.ragged import Integers

Int64s = npt.NDArray[np.int64]

ITEM_WORDS = AttentionItem.size() // 8
SPLIT_TOKENS = 8
"""Rows of more tokens have items enough for all threads."""
SHARES = 8
"""A row is split that is more than one of so many shares of a thread of all work."""
JOINED_SHARES = 2
"""Two rows are one item that is no more than one of so many shares: there is an item for each KV head."""
JOINED_GROUPS = (3, 4)
"""Query heads per KV head for whose pairs, of one row and of two, attention has loops of just as many."""


class PlanSizes(NamedTuple):
    """What a plan needs room for."""

    items: int  # I
    places: int  # for results of parts
    whole: int  # rows of more positions are split
    joined: int  # two rows of no more positions together may be one item


def plan_sizes(
    kernels: BlockKernels, starts: Integers, counts: Integers, num_tokens: int, context: int
) -> PlanSizes:
    """starts, counts: of rows, that compute so many tokens. context: the most positions of a row."""
    group, part, rows, threads = kernels.group, PART, len(counts), kernels.team.threads
    whole, joined = max(context, part), 0
    if context > part or kernels.joins and rows >= 2 * JOINED_SHARES:
        ends = starts + counts
        work = int(ends @ counts)
        joined = work // (JOINED_SHARES * threads) if kernels.joins else 0
        whole = max(part, work // (SHARES * threads)) if context > part else whole
    if context <= whole and num_tokens == rows:
        return PlanSizes(rows * -(-group // QUERIES), 0, whole, joined)
    items = -(-counts * group // QUERIES)
    if context <= whole:
        return PlanSizes(int(items.sum()), 0, whole, joined)
    split = (ends > whole) & (counts <= SPLIT_TOKENS)
    items = np.where(split, items * -(-ends // part), items)
    return PlanSizes(int(items.sum()), int(items[split].sum()), whole, joined)
