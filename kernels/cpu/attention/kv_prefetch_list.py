"""The list of what the attention layers of a step read, for kernels.cpu.attention.kv_prefetch_kernel."""

from kernels.cpu.attention.kv_prefetch_kernel import MOST_PIECES, PIECE
from kernels.cpu.attention.work_items_kernel import COMPANY, ITEM
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, write_i64


def _list_blocks(item: int, above: int, window: int, group: int, sizes: int, to: int, most: int) -> int:
    """Of the keys, then of the values of an item's row. above: address of the table of a row that may begin
    with the same blocks, which are in the list then; or 0. sizes: address of the block size, the bytes of a
    block, and those from keys to values. Returns how many pieces."""
    size, block_bytes, to_values = read_i64(sizes), read_i64(sizes + 8), read_i64(sizes + 16)
    start, table, first, pairs = (
        read_i64(item),
        read_i64(item + 8),
        read_i64(item + 24),
        read_i64(item + 32),
    )
    begin = 0 if window == 0 else max(0, start + first // group - window + 1)
    end = start + (first + pairs - 1) // group
    begin //= size
    while begin <= end // size and _is_shared(above, table, begin):
        begin += 1
    count = 0
    for half in range(2):
        for index in range(begin, end // size + 1):
            block = read_i64(table + 8 * index) * block_bytes + half * to_values
            for at in range(0, block_bytes, PIECE):
                if count < most:
                    write_i64(to + 8 * count, block + at)
                    count += 1
    return count


def _is_shared(above: int, table: int, index: int) -> bool:
    """Whether two rows have the same block there."""
    return above != 0 and read_i64(above + 8 * index) == read_i64(table + 8 * index)


@operation
def list_pieces(record: int, first: int, count: int, thread: int) -> None:
    """record: 1, addresses of the plan and of the step, items, query heads per KV head, block size, bytes of
    a block of keys, bytes from a layer's keys to its values.

    The plan and its items are those of kernels.cpu.attention.attention. Only the first item of a row counts,
    and of its parts the first; and what is in its company.
    """
    plan, step, items, group = (
        read_i64(record + 16),
        read_i64(record + 24),
        read_i64(record + 32),
        read_i64(record + 40),
    )
    window, to, listed = read_i64(plan + 8), read_i64(step), 0
    above = 0
    for number in range(items):
        item = read_i64(plan) + ITEM * number
        while item != 0 and read_i64(item + 24) == 0 and read_i64(item + 40) <= 0:
            left = MOST_PIECES - listed
            listed += _list_blocks(item, above, window, group, record + 48, to + 8 * listed, left)
            above = read_i64(item + 8)
            item = read_i64(item + COMPANY)
    write_i64(step + 8, listed)
