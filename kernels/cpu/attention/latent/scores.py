"""Scores of latents, which lie as values do: a position's numbers side by side, where
kernels.cpu.attention.vector_loops has 16 positions side by side.

          a tile of 16 positions
bfloat16  [8, D] pairs of positions
float32   [16, D]

The sum of a score goes over D in 16 lanes, which are added at the end as kernels.cpu.attention.softmax adds
them: in one order, however many pairs there are.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from llvmlite import ir

from kernels.cpu.attention.loops import Loops
from kernels.cpu.attention.softmax import add_vectors, of_lanes
from kernels.cpu.attention.vector_loops import SCORES
from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import F32S, I32, I32S, I64, LANES, call, load, repeat, store, word, zeros

MOST_WIDTH = 1024
"""Values of a query and of a latent, with its rotary part."""
LATENT_QUERY = 4 * MOST_WIDTH + 64
"""Bytes from one query of an item to the next: float32, whatever the latents are."""
_AT_ONCE = 8 if 8 in OPERATIONS.mix_vectors else 3
"""Pairs whose sums of two positions each stay in registers."""
_STEPS = 8
"""Of a tile, two positions each."""


def _two_positions(builder: Any, size: int, at: Any, to_next: Any) -> tuple[Any, Any]:
    """16 values of a position and of the next one, as float32. at: address. to_next: bytes from one to
    the other in float32; those of bfloat16 share words."""
    if size == 4:
        return load(builder, at, F32S), load(builder, builder.add(at, to_next), F32S)
    words = load(builder, at, I32S)
    upper, shift = (ir.Constant(I32S, [value] * LANES) for value in (0xFFFF0000, 16))
    return (
        builder.bitcast(builder.shl(words, shift), F32S),
        builder.bitcast(builder.and_(words, upper), F32S),
    )


def _some(rows: int) -> Iterator[range]:
    """The pairs, as many at a time as there are registers for."""
    for first in range(0, rows, _AT_ONCE):
        yield range(first, min(first + _AT_ONCE, rows))


def make_latent_scores(size: int, rows: int) -> Any:
    """scores(q, tiles, count, ahead, out, words): as kernels.cpu.attention.vector_loops.make_scores(), but
    for queries in float32, LATENT_QUERY bytes from row to row, and D a multiple of 16. Computes no tile
    more than there are, and asks for nothing ahead: a tile is read from its beginning to its end. size: bytes
    of a value of the latents."""

    @intrinsic(types.void(*[types.int64] * 6))
    def scores(builder: Any, q: Any, tiles: Any, count: Any, ahead: Any, out: Any, words: Any) -> None:
        row_bytes, step_bytes = (builder.mul(words, word(bytes_each)) for bytes_each in (4, 8))
        vectors = builder.lshr(words, word(3 if size == 2 else 4))

        def score_step(at: Any, to: Any, chosen: range) -> None:
            def add_products(v: Any, sums: list[Any]) -> list[Any]:
                offset = builder.mul(v, word(64))
                latents = _two_positions(builder, size, builder.add(at, offset), row_bytes)
                q_at = builder.add(q, offset)
                queries = [load(builder, builder.add(q_at, word(LATENT_QUERY * m)), F32S) for m in chosen]
                return [
                    call(builder, "llvm.fma.v16f32", F32S, query, latent, sums[2 * number + position])
                    for number, query in enumerate(queries)
                    for position, latent in enumerate(latents)
                ]

            sums = repeat(builder, vectors, zeros(2 * len(chosen)), add_products)
            for position in range(2):
                totals = of_lanes(builder, sums[position::2], add_vectors)
                for number, m in enumerate(chosen):
                    total = builder.extract_element(totals, ir.Constant(I32, number))
                    store(builder, total, builder.add(to, word(SCORES * m + 4 * position)))

        def score_tile(tile: Any, nothing: list[Any]) -> list[Any]:
            latents = load(builder, builder.add(tiles, builder.mul(tile, word(8))), I64)
            to = builder.add(out, builder.mul(tile, word(64)))

            def score_two(step: Any, empty: list[Any]) -> list[Any]:
                at = builder.add(latents, builder.mul(step, step_bytes))
                for chosen in _some(rows):
                    score_step(at, builder.add(to, builder.mul(step, word(8))), chosen)
                return empty

            repeat(builder, word(_STEPS), [], score_two)
            return nothing

        repeat(builder, count, [], score_tile)

    return scores


def latent_loops(loops: Loops) -> Loops:
    """The loops of a dtype, with scores of latents in place of those of keys."""
    scores_3, scores_4, scores_6, scores_8 = (make_latent_scores(loops.size, rows) for rows in (3, 4, 6, 8))
    return replace(
        loops,
        query=LATENT_QUERY,
        widens=True,
        scores_3=scores_3,
        scores_4=scores_4,
        scores_6=scores_6,
        scores_8=scores_8,
    )
