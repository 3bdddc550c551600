"""Prefetches the keys and values that the next attention reads, while products compute.

From some 24 rows on a product waits for its multiplications, and memory has little to do; attention of a
step that decodes waits for memory. So products ask for what the next attention reads, a line for each word
of a tile's rows. It passes through the second-level cache of the prefetching core, and waits in the third. No
result depends on it.

    list            [count] int64: pieces of 2 KiB, as bytes from a layer's keys; the same for all layers
    PrefetchStep    the list of a step: written by kernels.cpu.attention.planning.kv_prefetch_list
    PrefetchStream  of a product: which part of the list it asks for

The last pieces of the list are asked for by the last products, so that as little as can be comes between.
"""

from kernels.cpu.attention.records import PrefetchStep, PrefetchStream
from kernels.cpu.isa.vectors import read_i64

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
