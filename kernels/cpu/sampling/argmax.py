"""Greedy choice as records of a program: the ids of the largest logits, right after they have been computed.

    token[a] = the first i with x[a, i] = max x[a]; -1 where that is not finite

logits [M, V] float32 -> [M] int64: kernels.ops.sampling.choose.argmax, whose reference is that of this too. A
row is read once, in pieces that threads share: the first record finds the largest of each piece, the second
takes the first of these. Units of the first go through the first piece of all rows, then through the second:
a thread with the first half of them reads the columns that it has just written, as the first half of the
head's product.

As part of a step's program it finds the logits in caches and the threads awake; kernels.cpu.sampling.choose,
which draws as well, is a call of its own, with other threads."""

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import unroll
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.compiler.vectors import Mask, f32x16, i32x16
from kernels.cpu.isa.lanes import any_lane, constant_i32, larger, largest_lane, least_integer
from kernels.cpu.isa.simd import load_f32, select
from kernels.cpu.isa.vectors import LANES, read_f32, read_f64, read_i64, write_f64, write_i64
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.sampling.records import FindRecord, MergeRecord
from kernels.cpu.sampling.vector_loops import CHUNK, NO_TOKEN

RECORDS = 2
_ROWS, _LOGIT_ROWS = FindRecord.word("rows"), FindRecord.word("logit_rows")
_MERGED_TOGETHER = 32
"""Rows: merging one takes some ten nanoseconds."""
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


class GreedyChoice:
    """Two records, one after the other, and what they write."""

    def __init__(self, logits: torch.Tensor) -> None:
        """logits: [M, V] float32, contiguous, where they will be."""
        assert logits.is_contiguous() and logits.dtype == torch.float32
        most, vocab_size = logits.shape
        self._logits, self._pieces = logits, -(-vocab_size // PIECE)
        self._found = zeros((most * self._pieces, 2), torch.int64)
        self.tokens = zeros((most,), torch.int64)  # of the first rows, after a run

    def operations(self) -> Iterator[tuple[Operation[Any], OperationRecord, int]]:
        """The two operations, their records, and the fewest rows that a thread takes of each."""
        logits, found = self._logits.data_ptr(), self._found.data_ptr()
        yield find_in_pieces, FindRecord(logits=logits, vocab_size=self._logits.shape[1], found=found), 1
        merge = MergeRecord(found=found, pieces=self._pieces, tokens=self.tokens.data_ptr())
        yield merge_pieces, merge, _MERGED_TOGETHER

    def set_rows(self, records: npt.NDArray[np.int64], rows: int) -> None:
        """records: the two. rows: the first ones, that are chosen for from now on."""
        records[0, _ROWS], records[0, _LOGIT_ROWS] = rows * self._pieces, rows
        records[1, _ROWS] = rows
