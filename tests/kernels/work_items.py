"""The reference for the items that kernels.cpu.step.prepare_inputs lists in compiled code."""

from dataclasses import dataclass

import numpy as np

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import ITEM_WORDS, SPLIT_TOKENS, Int64s, PlanSizes
from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import LEAST_SHARED, LOOKED_AT, PART, QUERIES
from kernels.ops.attention.ragged import Integers


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
        at = {"start": start, "token": token, "end": end}
        row = AttentionItem(table=table.ctypes.data, first=0, pairs=0, part=-1, **at)
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
