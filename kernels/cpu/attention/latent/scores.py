"""Scores of latents, which lie as values do: a position's numbers side by side, where
kernels.cpu.attention.vector_loops has 16 positions side by side.

          a tile of 16 positions
bfloat16  [8, D] pairs of positions
float32   [16, D]

The sum of a score goes over D in 16 lanes, which are added at the end as kernels.cpu.attention.softmax adds
them: in one order, however many pairs there are.
"""

from dataclasses import replace
from typing import Any

from kernels.cpu.attention.loops import Loops
from kernels.cpu.attention.sizes import LATENT_QUERY, SCORES
from kernels.cpu.attention.softmax import add
from kernels.cpu.attention.stored_words import StoredWords
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.lanes import as_f32
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.shuffles import lane_of, reduce_rows
from kernels.cpu.isa.simd import fma, load_f32, load_i32
from kernels.cpu.isa.vectors import read_i64, write_f32

_AT_ONCE = 8 if 8 in OPERATIONS.mix_vectors else 3
"""Pairs whose sums of two positions each stay in registers."""


def _two_positions(stored: Static[StoredWords], at: int, to_next: int) -> tuple[f32x16, f32x16]:
    """16 values of a position and of the next one, as float32. at: address. to_next: bytes from one to
    the other in float32; those of bfloat16 share words."""
    if stored.in_word == 1:
        return load_f32(at), load_f32(at + to_next)
    words = load_i32(at)
    return as_f32(words << 16), as_f32(words & -65536)


def _score_two(
    stored: Static[StoredWords], rows: Static[int], q: int, latents: int, to: int, words: int
) -> None:
    """Of two positions, for some rows. latents: address of the first one's. to: address of its score."""
    sums: list[Any] = [f32x16(0.0) for _ in unroll(range(2 * rows))]
    for at in range(0, 4 * stored.in_word * words, 64):
        first, second = _two_positions(stored, latents + at, 4 * words)
        for m in unroll(range(rows)):
            query = load_f32(q + at + LATENT_QUERY * m)
            sums[m] = fma(query, first, sums[m])
            sums[rows + m] = fma(query, second, sums[rows + m])
    for position in unroll(range(2)):
        totals = reduce_rows(add, [sums[rows * position + m] for m in unroll(range(rows))])
        for m in unroll(range(rows)):
            write_f32(to + SCORES * m + 4 * position, lane_of(totals, m))


def score_latents(
    stored: Static[StoredWords],
    rows: Static[int],
    side: Static[int],
    q: int,
    tiles: int,
    count: int,
    ahead: int,
    out: int,
    words: int,
) -> None:
    """As kernels.cpu.attention.vector_loops.score(), but for queries in float32, LATENT_QUERY bytes from row
    to row, and D a multiple of 16. Computes no tile more than there are, and asks for nothing ahead: a tile
    is read from its beginning to its end."""
    for tile in range(count):
        latents, to = read_i64(tiles + 8 * tile), out + 64 * tile
        for step in range(8):
            for first in unroll(range(0, rows, _AT_ONCE)):
                _score_two(
                    *(stored, min(_AT_ONCE, rows - first), q + LATENT_QUERY * first),
                    *(latents + 8 * words * step, to + 8 * step + SCORES * first, words),
                )


def latent_loops(loops: Loops) -> Loops:
    """The loops of a dtype, with scores of latents in place of those of keys."""
    return replace(loops, query=LATENT_QUERY, widens=True, score=score_latents)
