"""Prefetches the keys and values that the next attention reads, while products compute.

From some 24 rows on a product waits for its multiplications, and memory has little to do; attention of a
step that decodes waits for memory. So products ask for what the next attention reads, a line for each word
of a tile's rows. It passes through the second-level cache of the prefetching core, and waits in the third. No
result depends on it.

    list            [count] int64: pieces of 2 KiB, as bytes from a layer's keys; the same for all layers
    PrefetchStep    the list of a step: written by list_pieces()
    PrefetchStream  of a product: which part of the list it asks for

The last pieces of the list are asked for by the last products, so that as little as can be comes between.
"""

from kernels.cpu.attention.records import (
    AttentionItem,
    PlanRecord,
    PrefetchRecord,
    PrefetchStep,
    PrefetchStream,
    first_seen,
)
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, write_i64

LINES = 32
"""Of 64 bytes, in a piece."""
PIECE = 64 * LINES
MOST_PIECES = 8192
"""What the third-level cache might hold."""


def part_of_tile(
    i: int, words: int, soon: int, soon_tiles: int, pieces: int, own: int
) -> tuple[int, int, int]:
    """What tile i of a block of columns prefetches: all that the block prefetches is shared among its tiles.

    soon: address of the columns that come next, and how many tiles prefetch these, two lines with each word.
    pieces: address in the list of what the others prefetch, a line with each word; or 0: the columns at
    `own`, which are there. Returns the address of the columns, that in the list or 0, and the bytes for each
    word.
    """
    if i < soon_tiles:
        return soon + 128 * words * i, 0, 128
    if pieces == 0:
        return own, 0, 128
    return own, pieces + 8 * (i - soon_tiles) * (words // LINES), 64


def first_line(columns: int, pieces: int, keys: int, number: int) -> int:
    """Address of what a tile prefetches with the first of the words LINES * number, ... keys: address of the
    layer's keys. Others: see part_of_tile()."""
    return keys + read_i64(pieces + 8 * number) if pieces else columns + 2 * PIECE * number


def pieces_of_block(stream: int, block: int, words: int, tiles: int) -> int:
    """Address in the list of what `tiles` tiles of a block of columns ask for; 0 where that is nothing."""
    if stream == 0 or tiles <= 0:
        return 0
    own = PrefetchStream.at(stream)
    step = PrefetchStep.at(own.step)
    skipped = tiles * own.total - step.count
    first = tiles * (own.before + block * (words // LINES)) - max(0, skipped)
    if first < 0 or skipped < 0 and first >= step.count:
        return 0
    return step.pieces + 8 * first


def _list_blocks(
    plan: PlanRecord, record: PrefetchRecord, item: AttentionItem, above: int, to: int, most: int
) -> int:
    """Of the keys, then of the values of an item's row. above: address of the table of a row that may begin
    with the same blocks, which are in the list then; or 0. Returns how many pieces."""
    size, block_bytes, group = record.block_size, record.block_bytes, record.group
    start, table, first = item.start, item.table, item.first
    begin = first_seen(plan, start + first // group) // size
    end = start + (first + item.pairs - 1) // group
    while begin <= end // size and _is_shared(above, table, begin):
        begin += 1
    count = 0
    for half in range(2):
        for index in range(begin, end // size + 1):
            block = read_i64(table + 8 * index) * block_bytes + half * record.to_values
            for at in range(0, block_bytes, PIECE):
                if count < most:
                    write_i64(to + 8 * count, block + at)
                    count += 1
    return count


def _is_shared(above: int, table: int, index: int) -> bool:
    """Whether two rows have the same block there."""
    return above != 0 and read_i64(above + 8 * index) == read_i64(table + 8 * index)


@operation
def list_pieces(record: PrefetchRecord, first: int, count: int, thread: int) -> None:
    """One unit makes the list. Only the first item of a row counts, and of its parts the first; and the item
    that is paired with it."""
    plan, step = PlanRecord.at(record.plan), PrefetchStep.at(record.step)
    listed = above = 0
    for number in range(record.items):
        item = AttentionItem.at(plan.items, number)
        while item.address != 0 and item.first == 0 and item.part <= 0:
            to, left = step.pieces + 8 * listed, MOST_PIECES - listed
            listed += _list_blocks(plan, record, item, above, to, left)
            above = item.table
            item = AttentionItem.at(item.paired)
    step.count = listed
