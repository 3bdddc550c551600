"""What attention over blocks is divided into: items, for any thread to take.

An item is up to 8 (query, head) pairs of a row that share a KV head: the group of one decoding token, or some
tokens of a prompt. Long rows that decode are split into parts, an item each. Two rows that decode and begin
with the same blocks are computed together, where that leaves work enough for every thread: the second row's
item is paired with the first. kernels.cpu.step.prepare_inputs finds the same ones in
compiled code.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import LEAST_SHARED, LOOKED_AT, PART, QUERIES
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


@dataclass
class _Item:
    """An item, with its row's block table [its blocks], and the one that is paired with it."""

    record: AttentionItem
    table: Int64s
    paired: "_Item | None" = None


def list_items(
    kernels: BlockKernels, starts: Integers, counts: Integers, tables: Int64s, sizes: PlanSizes
) -> tuple[Int64s, int]:
    """[I, ITEM_WORDS], and how many of them are taken by themselves: those that are paired with others come
    last. Long ones come first, so that no thread begins one when the others are done. Items of a row that go
    over the same part of it are neighbours: its keys and values are in a cache from the second on."""
    items: list[_Item] = []
    slots = token = 0
    for start, count, table in zip(starts.tolist(), counts.tolist(), tables, strict=True):
        end = start + count
        row = AttentionItem(start=start, table=table.ctypes.data, token=token, first=0, pairs=0, part=-1)
        parts = -(-end // PART) if count <= SPLIT_TOKENS and end > sizes.whole else 0
        some = range(0, count * kernels.group, QUERIES)
        for part in range(parts) if parts else (-1,):
            for number, first in enumerate(some):
                item = AttentionItem.from_buffer_copy(row)
                item.first, item.pairs = first, min(QUERIES, count * kernels.group - first)
                if parts:
                    item.part, item.slot = part, slots + number * parts + part
                items.append(_Item(item, table))
        slots += parts * len(some)
        _join(kernels, items, sizes.joined)
        token += count
    items.sort(key=lambda item: _length(kernels, item), reverse=True)
    return _words(items), len(items)


def _join(kernels: BlockKernels, items: list[_Item], most: int) -> None:
    """Pairs the last item with an earlier one, if there is one for it."""
    item = items[-1]
    if not _may_join(kernels, item):
        return
    for other in items[-2 : -2 - LOOKED_AT : -1]:
        shared = _shared_positions(kernels, item, other)
        if shared >= LEAST_SHARED and _may_join(kernels, other) and _fit(kernels, item, other, most):
            items.pop()
            other.paired, item.record.shared = item, shared
            return


def _may_join(kernels: BlockKernels, item: _Item) -> bool:
    """A whole row that decodes, alone."""
    record = item.record
    whole = record.part < 0 and record.first == 0 and record.pairs == kernels.group
    return whole and item.paired is None


def _fit(kernels: BlockKernels, item: _Item, other: _Item, most: int) -> bool:
    """Both rows end in the same part, and are not too long for one thread."""
    start, other_start = item.record.start, other.record.start
    return start // PART == other_start // PART and start + other_start + 2 <= most


def _shared_positions(kernels: BlockKernels, item: _Item, other: _Item) -> int:
    """In the blocks that two rows have in common at their beginning, and that both have filled."""
    blocks = min(item.record.start, other.record.start) // kernels.block_size
    equal = item.table[:blocks] == other.table[:blocks]
    return kernels.block_size * (blocks if equal.all() else int(equal.argmin()))


def _length(kernels: BlockKernels, item: _Item) -> int:
    """The positions that an item looks at, with those of the paired one."""
    record = item.record
    end = record.start + (record.first + record.pairs - 1) // kernels.group + 1
    if record.part >= 0:
        return min(end - record.part * PART, PART)
    return end if item.paired is None else end + item.paired.record.start + 1


def _words(items: list[_Item]) -> Int64s:
    pairs = [(item, item.paired) for item in items if item.paired is not None]
    words = np.empty((len(items) + len(pairs), ITEM_WORDS), np.int64)
    for number, (item, paired) in enumerate(pairs, len(items)):
        item.record.paired = words[number].ctypes.data
        words[number] = np.frombuffer(bytes(paired.record), np.int64)
    for number, item in enumerate(items):
        words[number] = np.frombuffer(bytes(item.record), np.int64)
    return words
