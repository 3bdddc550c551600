"""Inputs of a product as its tiles read them: the parts of each word (kernels.cpu.isa.dot), side by side.

Where an instruction multiplies whole words, there is nothing to split, and nothing here is used.
"""

from collections.abc import Callable

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import i32x16
from kernels.cpu.isa.lanes import interleaved
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import PAIR_PARTS, QUAD_PARTS, load_first_i32, pair_inputs, quad_inputs, store_i32
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.runtime.work_split import ROWS


def _split(
    parts: Static[int], part_of: Static[Callable[[i32x16, int], i32x16]], x: int, to: int, words: int
) -> None:
    """Writes the parts of so many words, and of nothing up to a multiple of 16."""
    for i in range((words + LANES - 1) // LANES):
        loaded, at = load_first_i32(x + 64 * i, words - LANES * i), to + 64 * parts * i
        if parts == 1:
            store_i32(at, part_of(loaded, 0))
        else:
            first, second = part_of(loaded, 0), part_of(loaded, 1)
            store_i32(at, interleaved(first, second, 0))
            store_i32(at + 64, interleaved(first, second, 1))


def as_they_are(x: int, rows: int, words: int, to: int) -> int:
    """Of words that have one part: nothing is written. Returns `x`."""
    return x


PAIR_BYTES, INTEGER_BYTES = 4 * PAIR_PARTS, 4 * QUAD_PARTS


def split_pairs(x: int, rows: int, words: int, to: int) -> int:
    """Of rows side by side, pairs of bfloat16. Returns `to`."""
    for row in range(rows):
        _split(PAIR_PARTS, pair_inputs, x + 4 * words * row, to + PAIR_BYTES * words * row, words)
    return to


def split_integers(x: int, rows: int, words: int, to: int) -> int:
    """Of rows side by side, four uint8 a word. Returns `to`."""
    for row in range(rows):
        _split(QUAD_PARTS, quad_inputs, x + 4 * words * row, to + INTEGER_BYTES * words * row, words)
    return to


def scratch_bytes(words: int) -> int:
    """What a thread needs for the rows that it multiplies at once; 0: nothing is split."""
    parts = max(OPERATIONS.pairs.parts, OPERATIONS.quads.parts)
    return 4 * parts * (words * ROWS + LANES) if parts > 1 else 0
