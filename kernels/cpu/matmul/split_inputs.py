"""Inputs of a product as its tiles read them: the parts of each word (kernels.cpu.isa.dot), side by side.

Where an instruction multiplies whole words, there is nothing to split, and nothing here is used.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import PAIR_PARTS, QUAD_PARTS, load_first_lanes, memory
from kernels.cpu.isa.vectors import I32S, LANES, repeat, store, word
from kernels.cpu.runtime.work_split import ROWS


def _split(builder: Any, dot: Dot, x: Any, to: Any, words: Any) -> None:
    """Writes the parts of so many words, and of nothing up to a multiple of 16."""

    def split_vector(i: Any, nothing: list[Any]) -> list[Any]:
        left = builder.sub(words, builder.mul(i, word(LANES)))
        loaded = load_first_lanes(builder, builder.add(x, builder.mul(i, word(64))), left, I32S)
        at = builder.add(to, builder.mul(i, word(64 * dot.parts)))
        for number, vector in enumerate(_side_by_side(builder, dot.inputs(builder, loaded))):
            store(builder, vector, builder.add(at, word(64 * number)))
        return nothing

    vectors = builder.udiv(builder.add(words, word(LANES - 1)), word(LANES))
    repeat(builder, vectors, [], split_vector)


def _side_by_side(builder: Any, parts: list[Any]) -> list[Any]:
    """Both vectors' lanes in turns, as two vectors."""
    if len(parts) == 1:
        return parts
    return [
        builder.shuffle_vector(
            *parts, ir.Constant(I32S, [at for lane in range(first, first + 8) for at in (lane, LANES + lane)])
        )
        for first in (0, 8)
    ]


_SIGNATURE = types.void(*[types.int64] * 3)


@lowered_by(lambda b, x, to, words: _split(b, OPERATIONS.pairs, x, to, words), _SIGNATURE)
def _split_pairs(x: int, to: int, words: int) -> None:
    """Writes the parts of words of two bfloat16; where there is one, the words."""
    source = memory(x, np.uint32, words)
    parts = [source] if PAIR_PARTS == 1 else [source & np.uint32(0xFFFF0000), source << 16]
    memory(to, np.uint32, words * PAIR_PARTS)[:] = np.stack(parts, 1).ravel()


@lowered_by(lambda b, x, to, words: _split(b, OPERATIONS.quads, x, to, words), _SIGNATURE)
def _split_integers(x: int, to: int, words: int) -> None:
    """Writes the parts of words of four uint8; where there is one, the words."""
    source, even = memory(x, np.uint32, words), np.uint32(0x00FF00FF)
    parts = [source] if QUAD_PARTS == 1 else [source & even, source >> 8 & even]
    memory(to, np.uint32, words * QUAD_PARTS)[:] = np.stack(parts, 1).ravel()


def as_they_are(x: int, rows: int, words: int, to: int) -> int:
    """Of words that have one part: nothing is written. Returns `x`."""
    return x


PAIR_BYTES, INTEGER_BYTES = 4 * PAIR_PARTS, 4 * QUAD_PARTS


def split_pairs(x: int, rows: int, words: int, to: int) -> int:
    """Of rows side by side, pairs of bfloat16. Returns `to`."""
    for row in range(rows):
        _split_pairs(x + 4 * words * row, to + PAIR_BYTES * words * row, words)
    return to


def split_integers(x: int, rows: int, words: int, to: int) -> int:
    """Of rows side by side, four uint8 a word. Returns `to`."""
    for row in range(rows):
        _split_integers(x + 4 * words * row, to + INTEGER_BYTES * words * row, words)
    return to


def scratch_bytes(words: int) -> int:
    """What a thread needs for the rows that it multiplies at once; 0: nothing is split."""
    parts = max(OPERATIONS.pairs.parts, OPERATIONS.quads.parts)
    return 4 * parts * (words * ROWS + LANES) if parts > 1 else 0
