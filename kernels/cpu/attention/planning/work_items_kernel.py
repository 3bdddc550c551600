"""Items of attention in compiled code: how long they are, and which rows may be in one.

Two rows that decode and begin with the same blocks, as after a common prompt, are better off in one item:
what they share comes from the second-level cache once. The reference is
kernels.cpu.attention.planning.work_items.
"""

from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import LEAST_SHARED, LOOKED_AT, PART
from kernels.cpu.isa.vectors import read_i64, write_i64

ITEM = AttentionItem.size()


def item_length(item: AttentionItem, group: int) -> int:
    """The positions that an item looks at, with those of the paired one. group: query heads per KV head."""
    end = item.start + (item.first + item.pairs - 1) // group + 1
    if item.part >= 0:
        return min(end - item.part * PART, PART)
    return end if item.paired == 0 else end + AttentionItem.at(item.paired).start + 1


def sort_items(items: int, count: int, group: int) -> None:
    """By their length, the largest first; a shell sort in place."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, count):
            j = i
            while j >= gap and _is_shorter(items, j - gap, j, group):
                for word in range(0, ITEM, 8):
                    one, other = items + ITEM * (j - gap) + word, items + ITEM * j + word
                    value = read_i64(one)
                    write_i64(one, read_i64(other))
                    write_i64(other, value)
                j -= gap
        gap //= 3


def _is_shorter(items: int, one: int, other: int, group: int) -> bool:
    """Whether an item is shorter than another one."""
    length = item_length(AttentionItem.at(items, one), group)
    return length < item_length(AttentionItem.at(items, other), group)


def join_item(items: int, count: int, most: int, group: int, block_size: int, to: int) -> bool:
    """Whether the last one of so many items has been paired with an earlier one: then it is at `to`. most:
    positions of two rows in an item."""
    item = AttentionItem.at(items, count - 1)
    if not _may_join(item, group):
        return False
    for number in range(count - 2, max(-1, count - 2 - LOOKED_AT), -1):
        other = AttentionItem.at(items, number)
        shared = _shared_positions(item, other, block_size)
        if shared >= LEAST_SHARED and _may_join(other, group) and _fit(item, other, most):
            for word in range(0, ITEM, 8):
                write_i64(to + word, read_i64(item.address + word))
            AttentionItem.at(to).shared = shared
            other.paired = to
            return True
    return False


def _may_join(item: AttentionItem, group: int) -> bool:
    """An item with a whole row that decodes, alone."""
    alone = item.paired == 0 and item.part < 0
    return alone and item.first == 0 and item.pairs == group


def _fit(item: AttentionItem, other: AttentionItem, most: int) -> bool:
    """Both rows end in the same part, and are not too long for one thread."""
    return item.start // PART == other.start // PART and item.start + other.start + 2 <= most


def _shared_positions(item: AttentionItem, other: AttentionItem, block_size: int) -> int:
    """In the blocks that two rows have in common at their beginning, and that both have filled."""
    table, other_table = item.table, other.table
    blocks, equal = min(item.start, other.start) // block_size, 0
    while equal < blocks and read_i64(table + 8 * equal) == read_i64(other_table + 8 * equal):
        equal += 1
    return equal * block_size
