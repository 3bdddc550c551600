"""Inputs of a product as its tiles read them: the parts of each word (kernels.cpu.isa.dot), side by side.

Where an instruction multiplies whole words, there is nothing to split, and nothing here is used.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.dot import Dot
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import I32, I32S, LANES, call, first_lanes, repeat, splat, store, word
from kernels.cpu.runtime.work_split import ROWS


def _make_split(dot: Dot) -> Any:
    """split(x, to, words): the parts of so many words, and of nothing up to a multiple of 16."""

    @intrinsic(types.void(*[types.int64] * 3))
    def split(builder: Any, x: Any, to: Any, words: Any) -> None:
        def split_vector(i: Any, nothing: list[Any]) -> list[Any]:
            mask = first_lanes(builder, builder.sub(words, builder.mul(i, word(LANES))))
            pointer = builder.inttoptr(builder.add(x, builder.mul(i, word(64))), I32S.as_pointer())
            name, align = "llvm.masked.load.v16i32.p0", ir.Constant(I32, 4)
            loaded = call(builder, name, I32S, pointer, align, mask, splat(I32S, 0))
            at = builder.add(to, builder.mul(i, word(64 * dot.parts)))
            for number, vector in enumerate(_side_by_side(builder, dot.inputs(builder, loaded))):
                store(builder, vector, builder.add(at, word(64 * number)))
            return nothing

        vectors = builder.udiv(builder.add(words, word(LANES - 1)), word(LANES))
        repeat(builder, vectors, [], split_vector)

    return split


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


_split_pairs, _split_integers = _make_split(OPERATIONS.pairs), _make_split(OPERATIONS.quads)
PAIR_BYTES, INTEGER_BYTES = 4 * OPERATIONS.pairs.parts, 4 * OPERATIONS.quads.parts


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
