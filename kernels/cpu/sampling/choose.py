"""kernels.ops.sampling.choose as records of a program: the tokens of rows of logits, right after they have
been computed; rows with a filter of LEFT_TO_TORCH are left to torch.

A row is read once for the largest logit of each chunk of 64 tokens. Where rows are few, that is another
operation, and threads share the pieces of a row. Its units go through the first piece of all rows, then
through the second: a thread with the first half of them reads the columns that it has just written, as the
first half of the head's product. What comes then depends on the row:

    greedy           the first chunk with the largest of all, its first token
    top_k            candidates: the tokens from a score on, the k-th best of the chunks' largest, since at
                     least k tokens reach that. Only chunks that reach it are looked at. All else happens
                     among the candidates, which stay in the order of their ids
    without top_k    the other filters become limits, and the weights that they leave are added up chunk by
                     chunk: kernels.cpu.sampling.full_vocab

Everything is written once: a straggler must not write anything else for a while
(kernels.cpu.runtime.straggler_recovery).
"""

from collections.abc import Iterator
from math import inf
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import float32, unroll
from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i64, write_f64, write_i64
from kernels.cpu.runtime.arena import zeros
from kernels.cpu.runtime.thread_pool import Team
from kernels.cpu.sampling.candidates import collect, cut, keep_best, pick, total_of
from kernels.cpu.sampling.full_vocab import draw_from_all
from kernels.cpu.sampling.records import ChooseRecord, LargestRecord
from kernels.cpu.sampling.scratch import (
    BEST,
    CHUNKS,
    LARGEST,
    TEMPERATURE,
    begin_row,
    logits_at,
    scratch_bytes,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import CHUNK, LOWEST, NO_TOKEN, at_least, chunk_largest, weigh
from kernels.ops.sampling.columns import COLUMNS, FLOATS, NEUTRAL, UNKNOWN, SamplingColumns
from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1

_NAMES = ("temperature", "top_p", "min_p", "top_k", "sequence_index", "position", "seed")
_TEMPERATURE, _TOP_P, _MIN_P, _TOP_K, _INDEX, _POSITION, _SEED = map(COLUMNS.index, _NAMES)
LEFT_TO_TORCH = tuple((COLUMNS.index(name), NEUTRAL[name]) for name in FLOATS if name not in _NAMES)
"""Filters that are not compiled, such as typical_p: column and neutral value."""


PIECE = 128 * CHUNK
"""Logits: 32 KiB, read in a microsecond or two."""
RECORDS = 2
FEW_ROWS = 64
"""Of which pieces may be read by several threads: if there are fewer than ROWS_PER_THREAD for each."""
ROWS_PER_THREAD = 4


def _best_chunk(scratch: int) -> int:
    """The first chunk that has the largest logit of all; NO_TOKEN where that is not finite."""
    largest, best, at = read_i64(scratch + LARGEST), float32(-inf), NO_TOKEN
    for chunk in range(read_i64(scratch + CHUNKS)):
        score = read_f32(largest + 4 * chunk)
        if not score < inf:  # or NaN
            return NO_TOKEN
        if score > best:
            best, at = score, chunk
    return at


def _kth_chunk(k: int, scratch: int) -> float:
    """The k-th best of the chunks' largest; LOWEST where fewer have anything, or none but masked tokens."""
    _, _, _, weights, free = scratch_places(scratch)
    chunks, largest = read_i64(scratch + CHUNKS), read_i64(scratch + LARGEST)
    for chunk in range(chunks):
        write_f64(weights + 8 * chunk, 1.0)
    place = cut(largest, weights, chunks, 0.0, float(k), 0.0, free)
    limit = float32(LOWEST)
    if place != UNKNOWN:
        limit = max(limit, read_f32(largest + 4 * place))
    return limit


def _draw_from_best(k: int, top_p: float, min_p: float, u: float, scratch: int) -> int:
    """From the k best tokens, or those of them that other filters leave."""
    _, scores, ids, weights, _ = scratch_places(scratch)
    n = collect(_kth_chunk(k, scratch), scratch)
    if k < n:
        for i in range(n):
            write_f64(weights + 8 * i, 1.0)
        n = keep_best(n, float(k), 0.0, scratch)
    weigh(scores, read_f64(scratch + BEST), read_f64(scratch + TEMPERATURE), weights, (n + 7) // 8)
    if top_p < 1:
        target = top_p * total_of(weights, n, 0.0)
        n = keep_best(n, target, (n + 8) * 2.0**-52 * target, scratch)
    return pick(ids, weights, n, min_p, u * total_of(weights, n, min_p))


def uniform(seed: int, index: int, position: int) -> float:
    """Returns the random number of a token: kernels.ops.sampling.choose, one block, in registers.

    Words below 2^32 in 64 bits: products wrap around, and a mask drops the sign that a shift brings in."""
    key_low, key_high = seed & MASK, (seed >> 32) & MASK
    c0, c1, c2, c3 = index, position, 0, 0
    for _ in range(ROUNDS):
        p0, p1 = M0 * c0, M1 * c2
        c0, c1 = ((p1 >> 32) ^ c1 ^ key_low) & MASK, p1 & MASK
        c2, c3 = ((p0 >> 32) ^ c3 ^ key_high) & MASK, p0 & MASK
        key_low, key_high = (key_low + W0) & MASK, (key_high + W1) & MASK
    return ((c0 << 21) | (c1 >> 11)) * 2.0**-53


def _at(record: ChooseRecord, column: int, row: int) -> int:
    """The address of a row's number in a column."""
    return record.columns + 8 * (record.num_rows * column + row)


def _draw(record: ChooseRecord, row: int, scratch: int) -> int:
    """By the row's parameters."""
    for column, neutral in unroll(LEFT_TO_TORCH):
        if read_f64(_at(record, column, row)) != neutral:
            return UNKNOWN
    k = read_i64(_at(record, _TOP_K, row))
    top_p, min_p = read_f64(_at(record, _TOP_P, row)), read_f64(_at(record, _MIN_P, row))
    index, position = read_i64(_at(record, _INDEX, row)), read_i64(_at(record, _POSITION, row))
    u = uniform(read_i64(_at(record, _SEED, row)), index, position)
    return _draw_from_best(k, top_p, min_p, u, scratch) if k > 0 else draw_from_all(top_p, min_p, u, scratch)


@operation
def find_largest(record: LargestRecord, first: int, count: int, thread: int) -> None:
    """Pieces first .. first + count - 1."""
    vocab_size, rows = record.vocab_size, record.logit_rows
    chunks = (vocab_size + CHUNK - 1) // CHUNK
    for unit in range(first, first + count):
        row, begin = unit % rows, PIECE * (unit // rows)
        out = record.largest + 4 * (chunks * row + begin // CHUNK)
        chunk_largest(record.logits + 4 * (vocab_size * row + begin), min(PIECE, vocab_size - begin), out)


@operation
def choose_rows(record: ChooseRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    vocab_size, scratch = record.vocab_size, read_i64(record.scratch + 8 * thread)
    chunks = (vocab_size + CHUNK - 1) // CHUNK
    for a in range(first, first + count):
        index = read_i64(record.indexes + 8 * a) if record.indexes != 0 else a
        row = read_i64(record.rows_of_columns + 8 * index)
        largest = record.largest + 4 * chunks * a if record.largest != 0 else 0
        begin_row(record.logits + 4 * vocab_size * a, vocab_size, largest, scratch)
        token = chunk = _best_chunk(scratch)
        if chunk != NO_TOKEN:
            best = read_f32(read_i64(scratch + LARGEST) + 4 * chunk)
            temperature = read_f64(_at(record, _TEMPERATURE, row))
            write_f64(scratch + BEST, best)
            write_f64(scratch + TEMPERATURE, temperature)
            if temperature == 0:
                token = chunk * CHUNK + lowest_bit(at_least(logits_at(chunk, scratch), best))
            else:
                token = _draw(record, row, scratch)
        write_i64(record.tokens + 8 * a, token)


class Choice:
    """The records of a choice from up to A rows of logits, and where they leave the tokens."""

    def __init__(self, most: int, vocab_size: int, team: Team) -> None:
        """most: A."""
        self.tokens = zeros((most,), torch.int64)  # of the first rows, after a run
        self._pieces, self._team = -(-vocab_size // PIECE), team
        self._largest = zeros((min(most, FEW_ROWS), -(-vocab_size // CHUNK)), torch.float32)
        self._find = LargestRecord(vocab_size=vocab_size, largest=self._largest.data_ptr())
        self._choose = ChooseRecord(
            vocab_size=vocab_size,
            tokens=self.tokens.data_ptr(),
            scratch=team.scratch(scratch_bytes(vocab_size)),
        )

    def fits(self, count: int, vocab_size: int) -> bool:
        """Returns whether it chooses from so many rows of so many logits."""
        return count <= len(self.tokens) and vocab_size == self._find.vocab_size

    def operations(self) -> Iterator[tuple[Operation[Any], OperationRecord]]:
        """The operations and their records, each of whose units may be computed twice."""
        yield find_largest, self._find
        yield choose_rows, self._choose

    def set_rows(
        self,
        records: npt.NDArray[np.int64],
        logits: torch.Tensor,
        columns: SamplingColumns,
        rows: int,
        indexes: int = 0,
    ) -> None:
        """Writes the records, which have been put into a program, for its next run. logits: [N, V] float32,
        contiguous. rows: address of rows of the columns, [T] int64. indexes: address of [N] int64, which of
        them; 0: in order."""
        count, find, choose = len(logits), self._find, self._choose
        by_pieces = count <= len(self._largest) and count < ROWS_PER_THREAD * self._team.threads
        find.rows, find.logit_rows = count * self._pieces if by_pieces else 0, count
        find.logits = choose.logits = logits.data_ptr()
        choose.rows, choose.largest = count, find.largest if by_pieces else 0
        choose.columns, choose.num_rows = columns.address, columns.num_rows
        choose.rows_of_columns, choose.indexes = rows, indexes
        for written, record in zip(records, (find, choose), strict=True):
            words = np.frombuffer(bytes(record), np.int64)
            written[: len(words)] = words
