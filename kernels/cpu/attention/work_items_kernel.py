"""Items of attention, as words: how long they are, and which rows may be in one.

    item    0   start of the row, address of its block table, its first token in the step
            24  the first (query, head) pair in the row, and how many; a part of the row, or -1: all of them;
                the number of a place for the part's result
            56  address of another row's item that is computed with this one (its company), or 0; and of that
                one: how many positions of its row, from the first on, are in the same blocks as this row's

Two rows that decode and begin with the same blocks, as after a common prompt, are better off in one item:
what they share comes from the second-level cache once. The twin is kernels.cpu.attention.work_items.
"""

from kernels.cpu.attention.vector_loops import PART
from kernels.cpu.isa.vectors import read_i64, write_i64

ITEM = 72
COMPANY, SHARED = 56, 64
LEAST_SHARED = 64
"""Positions. Two rows that share fewer gain less than it costs to go over them together."""
LOOKED_AT = 32
"""Items among which a row looks for company: so that many rows cost no more each than some do."""


def item_length(item: int, group: int) -> int:
    """The positions that an item looks at, with its company's. group: query heads per KV head."""
    part = read_i64(item + 40)
    end = read_i64(item) + (read_i64(item + 24) + read_i64(item + 32) - 1) // group + 1
    if part >= 0:
        return min(end - part * PART, PART)
    return end if read_i64(item + COMPANY) == 0 else end + read_i64(read_i64(item + COMPANY)) + 1


def sort_items(items: int, count: int, group: int) -> None:
    """By their length, the largest first; a shell sort in place."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            j = i
            while j >= gap and item_length(items + ITEM * (j - gap), group) < item_length(
                items + ITEM * j, group
            ):
                for word in range(0, ITEM, 8):
                    one, other = items + ITEM * (j - gap) + word, items + ITEM * j + word
                    value = read_i64(one)
                    write_i64(one, read_i64(other))
                    write_i64(other, value)
                j -= gap
        gap //= 3


def join_item(items: int, count: int, most: int, group: int, block_size: int, to: int) -> bool:
    """Whether the last one of so many items has become the company of an earlier one: then it is at `to`.
    most: positions of two rows in an item."""
    item = items + ITEM * (count - 1)
    if not _may_join(item, group):
        return False
    for number in range(count - 2, max(-1, count - 2 - LOOKED_AT), -1):
        other = items + ITEM * number
        shared = _shared_positions(item, other, block_size)
        if shared >= LEAST_SHARED and _may_join(other, group) and _fit(item, other, most):
            for word in range(0, ITEM, 8):
                write_i64(to + word, read_i64(item + word))
            write_i64(to + SHARED, shared)
            write_i64(other + COMPANY, to)
            return True
    return False


def _may_join(item: int, group: int) -> bool:
    """An item with a whole row that decodes, alone."""
    alone = read_i64(item + COMPANY) == 0 and read_i64(item + 40) < 0
    return alone and read_i64(item + 24) == 0 and read_i64(item + 32) == group


def _fit(item: int, other: int, most: int) -> bool:
    """Both rows end in the same part, and are not too long for one thread."""
    start, other_start = read_i64(item), read_i64(other)
    return start // PART == other_start // PART and start + other_start + 2 <= most


def _shared_positions(item: int, other: int, block_size: int) -> int:
    """In the blocks that two rows have in common at their beginning, and that both have filled."""
    table, other_table = read_i64(item + 8), read_i64(other + 8)
    blocks, equal = min(read_i64(item), read_i64(other)) // block_size, 0
    while equal < blocks and read_i64(table + 8 * equal) == read_i64(other_table + 8 * equal):
        equal += 1
    return equal * block_size
