"""The first of the largest logits of rows (kernels.cpu.program.head), as two operations of a program.

A unit of the first is a piece of a row, so that threads share a single row too. Units go through the first
piece of all rows, then through the second: a thread with the first half of them reads the columns that it
has just written, as the first half of the head's product.
"""

from math import inf

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import unroll
from kernels.cpu.compiler.vectors import Mask, f32x16, i32x16
from kernels.cpu.isa.lanes import any_lane, constant_i32, larger, largest_lane, least_integer
from kernels.cpu.isa.simd import load_f32, select
from kernels.cpu.isa.vectors import LANES, read_f32, read_f64, read_i64, write_f64, write_i64
from kernels.cpu.sampling.records import FindRecord, MergeRecord
from kernels.cpu.sampling.vector_loops import CHUNK, NO_TOKEN

PIECE = 128 * CHUNK
"""Logits: 32 KiB, read in a microsecond or two."""
_STREAMS = CHUNK // LANES
"""Vectors that are followed side by side, so that no comparison waits for the last one."""


_lanes = constant_i32(range(LANES))


def _first_largest(x: int, chunks: int) -> int:
    """The first place of the largest of [64 * chunks] float32 at x; NO_TOKEN where one is NaN."""
    best = [f32x16(-inf) for _ in unroll(range(_STREAMS))]
    places = [i32x16(0) for _ in unroll(range(_STREAMS))]
    broken = [best[i] != best[i] for i in unroll(range(_STREAMS))]
    for chunk in range(chunks):
        number = i32x16(chunk)
        for i in unroll(range(_STREAMS)):
            part = load_f32(x + 4 * (CHUNK * chunk + LANES * i))
            is_greater = part > best[i]
            best[i] = select(is_greater, part, best[i])
            places[i] = select(is_greater, number, places[i])
            broken[i] = broken[i] | (part != part)
    place = _first_place(best, places)
    return NO_TOKEN if _any_of(broken) else place


def _any_of(masks: list[Mask]) -> bool:
    found = masks[0]
    for i in unroll(range(1, _STREAMS)):
        found = found | masks[i]
    return any_lane(found)


def _first_place(best: list[f32x16], places: list[i32x16]) -> int:
    """Of the largest. places: numbers of chunks."""
    most = best[0]
    for i in unroll(range(1, _STREAMS)):
        most = larger(best[i], most)
    largest, first = largest_lane(most), i32x16(2**31 - 1)
    for i in unroll(range(_STREAMS)):
        place = places[i] * CHUNK + (_lanes() + LANES * i)
        is_sooner = (best[i] == largest) & (place < first)
        first = select(is_sooner, place, first)
    return least_integer(first)


def _find_in_piece(x: int, size: int, found: int) -> int:
    """Writes the largest of so many logits at x to an address, as float64: +inf where one is NaN. Returns its
    first place; NO_TOKEN where there is none. It is written once: a straggler must not write anything else
    for a while (kernels.cpu.runtime.straggler_recovery)."""
    chunks, best, at = size // CHUNK, -inf, NO_TOKEN
    if chunks > 0:
        at = _first_largest(x, chunks)
        best = read_f32(x + 4 * at) if at != NO_TOKEN else inf
        if best == -inf:
            at = NO_TOKEN
    for i in range(CHUNK * chunks, size):
        score = read_f32(x + 4 * i)
        if score > best:
            best, at = score, i
        if not score < inf:  # or NaN
            best = inf
    write_f64(found, best)
    return at


@operation
def find_in_pieces(record: FindRecord, first: int, count: int, thread: int) -> None:
    """Pieces first .. first + count - 1."""
    vocab_size, rows = record.vocab_size, record.logit_rows
    for unit in range(first, first + count):
        row, begin = unit % rows, PIECE * (unit // rows)
        x, at = record.logits + 4 * (vocab_size * row + begin), record.found + 16 * unit
        place = _find_in_piece(x, min(PIECE, vocab_size - begin), at)
        write_i64(at + 8, begin + place if place != NO_TOKEN else NO_TOKEN)


@operation
def merge_pieces(record: MergeRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    rows, found = record.rows, record.found
    for row in range(first, first + count):
        best, token = -inf, NO_TOKEN
        for piece in range(record.pieces):
            at = found + 16 * (rows * piece + row)
            score = read_f64(at)
            if score == inf:
                token = NO_TOKEN
                break
            if score > best:
                best, token = score, read_i64(at + 8)
        write_i64(record.tokens + 8 * row, token)
