"""Keys and values that the next attention reads, asked for from memory while products compute.

From some 24 rows on a product waits for its multiplications, and memory has little to do; attention of a
step that decodes waits for memory. So products ask for what the next attention reads, a line for each word
of a tile's rows. It goes through the second-level cache of whoever asks, and waits in the third. No result
depends on it.

    list            [count] int64: pieces of 2 KiB, as bytes from a layer's keys; the same for all layers
    PrefetchStep    the list of a step: written by kernels.cpu.attention.kv_prefetch_list
    PrefetchStream  of a product: which part of the list it asks for

The last pieces of the list are asked for by the last products, so that as little as can be comes between.
"""

from dataclasses import dataclass
from typing import Any

from kernels.cpu.attention.records import PrefetchStep, PrefetchStream
from kernels.cpu.isa.vectors import I64, load, prefetch, word

LINES = 32
"""Of 64 bytes, in a piece."""
PIECE = 64 * LINES
MOST_PIECES = 8192
"""What the third-level cache might hold."""


@dataclass(frozen=True)
class Ahead:
    """What a tile asks for from memory: for each word of its rows two lines of the columns that come next,
    or one line of a list of pieces. Values of LLVM."""

    columns: Any  # address
    pieces: Any  # address in the list; 0: it is columns
    keys: Any  # address of the layer's keys
    step: Any  # bytes for each word

    def first_line(self, builder: Any, number: Any) -> Any:
        """Address of what is asked for with the first of LINES words."""
        columns = builder.add(self.columns, builder.mul(number, word(2 * PIECE)))
        listed = builder.icmp_signed("!=", self.pieces, word(0))
        entry = builder.add(self.pieces, builder.mul(number, word(8)))
        entry = builder.select(listed, entry, self.columns)  # is not used then, but can be read
        piece = builder.add(self.keys, load(builder, entry, I64))
        return builder.select(listed, piece, columns)

    def ask(self, builder: Any, line: Any) -> Any:
        """For a word. line: address. Returns that for the next word."""
        prefetch(builder, line)
        after = builder.add(line, self.step)
        prefetch(builder, builder.sub(after, word(64)))
        return after


def part_of_tile(
    builder: Any, i: Any, words: Any, soon: tuple[Any, Any], pieces: tuple[Any, Any], own: Any
) -> Ahead:
    """What tile i asks for, of 8 rows of a block of columns: all that the block asks for is shared among its
    tiles. soon: address of the columns that come next, and how many tiles ask for these. pieces: address in
    the list for the other tiles, or 0, and of the layer's keys. own: address of columns that are there."""
    first = builder.icmp_signed("<", i, soon[1])
    columns = builder.add(soon[0], builder.mul(builder.mul(i, words), word(128)))
    number = builder.mul(builder.sub(i, soon[1]), builder.udiv(words, word(LINES)))
    listed = builder.add(pieces[0], builder.mul(number, word(8)))
    none = builder.or_(first, builder.icmp_signed("==", pieces[0], word(0)))
    return Ahead(
        columns=builder.select(first, columns, own),
        pieces=builder.select(none, word(0), listed),
        keys=pieces[1],
        step=builder.select(none, word(128), word(64)),
    )


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
