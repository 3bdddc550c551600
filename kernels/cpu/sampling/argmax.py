"""The first of the largest logits of rows: kernels.cpu.sampling.argmax_api, as two operations of a program.

A unit of the first is a piece of a row, so that threads share a single row too. Units go through the first
piece of all rows, then through the second: a thread with the first half of them reads the columns that it
has just written, as the first half of the head's product.
"""

from math import inf
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.vectors import (
    BITS,
    F32,
    F32S,
    I32,
    I32S,
    I64,
    LANES,
    broadcast,
    call,
    load,
    read_f32,
    read_i64,
    repeat,
    word,
    write_i64,
)
from kernels.cpu.sampling.records import FindRecord, MergeRecord
from kernels.cpu.sampling.vector_loops import CHUNK, NO_TOKEN, read_f64, write_f64

PIECE = 128 * CHUNK
"""Logits: 32 KiB, read in a microsecond or two."""
_STREAMS = CHUNK // LANES
"""Vectors that are followed side by side, so that no comparison waits for the last one."""


@intrinsic(types.int64(types.int64, types.int64))
def _first_largest(builder: Any, x: Any, chunks: Any) -> Any:
    """The first place of the largest of [64 * chunks] float32 at x; NO_TOKEN where one is NaN."""
    none, never = ir.Constant(F32S, [-inf] * LANES), ir.Constant(BITS, [0] * LANES)
    start = [none] * _STREAMS + [ir.Constant(I32S, [0] * LANES)] * _STREAMS + [never] * _STREAMS

    def follow(chunk: Any, before: list[Any]) -> list[Any]:
        at, number = builder.mul(chunk, word(4 * CHUNK)), broadcast(builder, builder.trunc(chunk, I32))
        best, places, broken = (before[i : i + _STREAMS] for i in range(0, 3 * _STREAMS, _STREAMS))
        for i in range(_STREAMS):
            part = load(builder, builder.add(x, builder.add(at, word(4 * LANES * i))), F32S)
            greater = builder.fcmp_ordered(">", part, best[i])
            best[i] = builder.select(greater, part, best[i])
            places[i] = builder.select(greater, number, places[i])
            broken[i] = builder.or_(broken[i], builder.fcmp_unordered("uno", part, part))
        return [*best, *places, *broken]

    result = repeat(builder, chunks, start, follow)
    best, places, broken = (result[i : i + _STREAMS] for i in range(0, 3 * _STREAMS, _STREAMS))
    most, any_broken = best[0], broken[0]
    for i in range(1, _STREAMS):
        most = builder.select(builder.fcmp_ordered(">", best[i], most), best[i], most)
        any_broken = builder.or_(any_broken, broken[i])
    most = call(builder, "llvm.vector.reduce.fmax.v16f32", F32, most)
    any_broken = call(builder, "llvm.vector.reduce.or.v16i1", ir.IntType(1), any_broken)
    place = builder.zext(_first_place(builder, best, places, broadcast(builder, most)), I64)
    return builder.select(any_broken, word(NO_TOKEN), place)


def _first_place(builder: Any, best: list[Any], places: list[Any], most: Any) -> Any:
    """Of what equals the most: i32. best, places: of each stream, F32S and numbers of chunks."""
    first = ir.Constant(I32S, [2**31 - 1] * LANES)
    for i in range(_STREAMS):
        lanes = ir.Constant(I32S, [LANES * i + lane for lane in range(LANES)])
        place = builder.add(builder.mul(places[i], ir.Constant(I32S, [CHUNK] * LANES)), lanes)
        equal = builder.fcmp_ordered("==", best[i], most)
        sooner = builder.and_(equal, builder.icmp_signed("<", place, first))
        first = builder.select(sooner, place, first)
    return call(builder, "llvm.vector.reduce.smin.v16i32", I32, first)


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
