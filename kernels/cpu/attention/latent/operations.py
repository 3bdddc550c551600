"""Attention over latents: the operations of kernels.cpu.attention.attention where one vector of a position is
the key of all heads, and its first values are their value.

    plane [B, 1, S, D], of which value_dim values are mixed; a row r of 16 consecutive slots
    bfloat16   row pair r // 2:   [D] words; half r % 2 of word d is latent[d]
    float32    row r:             [D]

So a position is kept once. Items, parts, softmax and mixing are those of keys and values. Scores differ:
latents lie as values do, a position's numbers side by side, where kernels.cpu.attention.vector_loops has 16
positions side by side. The sum of a score goes over D in 16 lanes, which are added at the end as
kernels.cpu.attention.softmax adds them: in one order, however many pairs there are.

Products of single heads read and write their rows one behind the other: copy_heads() brings the heads of rows
from one layout to another, [T, H, D] to [H, T, D] or between strides.
"""

from dataclasses import replace
from typing import Any

from kernels.cpu.attention.attention import attend_units
from kernels.cpu.attention.loops import BFLOAT16, FLOAT32, Loops
from kernels.cpu.attention.records import AttentionRecord, CopyHeadsRecord, StoreKVRecord
from kernels.cpu.attention.sizes import LATENT_QUERY, SCORES
from kernels.cpu.attention.softmax import add
from kernels.cpu.attention.stored_words import StoredWords
from kernels.cpu.attention.vector_loops import copy
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.lanes import as_f32
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.shuffles import lane_of, reduce_rows
from kernels.cpu.isa.simd import fma, load_f32, load_i32
from kernels.cpu.isa.vectors import read_i64, read_u16, read_u32, write_f32, write_u16, write_u32

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


_LOOPS, _FLOAT32_LOOPS = latent_loops(BFLOAT16), latent_loops(FLOAT32)


@operation
def latent_attention(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    """key_cache and value_cache are the same plane."""
    attend_units(_LOOPS, record, first, count, thread)


@operation
def store_latents(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    """Tokens first .. first + count - 1, of one head: the record's keys. It has no values."""
    head_dim = record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.slot_rows + 8 * token)
        source, to = record.key + token * record.stride, record.key_cache + row // 2 * 4 * head_dim
        for d in range(head_dim):
            write_u16(to + 2 * (row % 2) + 4 * d, read_u16(source + 2 * d))


@operation
def latent_attention_float32(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    attend_units(_FLOAT32_LOOPS, record, first, count, thread)


@operation
def store_latents_float32(record: StoreKVRecord, first: int, count: int, thread: int) -> None:
    head_dim = record.head_dim
    for token in range(first, first + count):
        row = read_i64(record.slot_rows + 8 * token)
        source, to = record.key + token * record.stride, record.key_cache + row * 4 * head_dim
        for d in range(head_dim):
            write_u32(to + 4 * d, read_u32(source + 4 * d))


def _copy(source: int, to: int, num_bytes: int) -> None:
    """A multiple of 4."""
    lines = num_bytes // 64
    if lines:
        copy(source, to, lines)
    for at in range(64 * lines, num_bytes, 4):
        write_u32(to + at, read_u32(source + at))


@operation
def copy_heads(record: CopyHeadsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    for row in range(first, first + count):
        x, out = record.x + row * record.x_stride, record.out + row * record.out_stride
        for head in range(record.heads):
            _copy(x + head * record.x_pitch, out + head * record.out_pitch, record.head_bytes)
