"""kernels.ops.sampling.choose for rows of logits, one at a time; rows with a filter of LEFT_TO_TORCH are left
to torch.

A row is read once for the largest logit of each chunk of 64 tokens. What comes then depends on it:

    greedy           the first chunk with the largest of all, its first token
    top_k            candidates: the tokens from a score on, the k-th best of the chunks' largest, since at
                     least k tokens reach that. Only chunks that reach it are looked at. All else happens
                     among the candidates, which stay in the order of their ids
    without top_k    the other filters become limits, and the weights that they leave are added up chunk by
                     chunk: kernels.cpu.sampling.full_vocab
"""

from math import inf

from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import float32, unroll
from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i64, write_f64, write_i64
from kernels.cpu.sampling.candidates import collect, cut, keep_best, pick, total_of
from kernels.cpu.sampling.full_vocab import draw_from_all
from kernels.cpu.sampling.records import UNKNOWN, ChooseRecord
from kernels.cpu.sampling.scratch import (
    BEST,
    CHUNKS,
    LARGEST,
    LAST,
    TEMPERATURE,
    VOCAB_SIZE,
    X,
    begin_row,
    logits_at,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import CHUNK, LOWEST, NO_TOKEN, at_least, chunk_largest, weigh
from kernels.ops.sampling.columns import COLUMNS, FLOATS, NEUTRAL
from kernels.ops.sampling.philox_constants import M0, M1, MASK, ROUNDS, W0, W1

_NAMES = ("temperature", "top_p", "min_p", "top_k", "sequence_index", "position", "seed")
_TEMPERATURE, _TOP_P, _MIN_P, _TOP_K, _INDEX, _POSITION, _SEED = map(COLUMNS.index, _NAMES)
LEFT_TO_TORCH = tuple((COLUMNS.index(name), NEUTRAL[name]) for name in FLOATS if name not in _NAMES)
"""Filters that are not compiled, such as typical_p: column and neutral value."""


def _find_largest(scratch: int) -> int:
    """Notes the largest of each chunk. Returns the first chunk that has the largest of all; NO_TOKEN where
    that is not finite."""
    chunks, largest = read_i64(scratch + CHUNKS), scratch + LARGEST
    whole = read_i64(scratch + VOCAB_SIZE) // CHUNK
    if whole:
        chunk_largest(read_i64(scratch + X), whole, largest)
    if whole < chunks:
        chunk_largest(scratch + LAST, 1, largest + 4 * whole)
    best, at = float32(-inf), NO_TOKEN
    for chunk in range(chunks):
        score = read_f32(largest + 4 * chunk)
        if not score < inf:  # or NaN
            return NO_TOKEN
        if score > best:
            best, at = score, chunk
    return at


def _kth_chunk(k: int, scratch: int) -> float:
    """The k-th best of the chunks' largest; LOWEST where fewer have anything, or none but masked tokens."""
    _, _, _, weights, free = scratch_places(scratch)
    chunks = read_i64(scratch + CHUNKS)
    for chunk in range(chunks):
        write_f64(weights + 8 * chunk, 1.0)
    place = cut(scratch + LARGEST, weights, chunks, 0.0, float(k), 0.0, free)
    limit = float32(LOWEST)
    if place != UNKNOWN:
        limit = max(limit, read_f32(scratch + LARGEST + 4 * place))
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


@compiled
def choose_rows(record: ChooseRecord, first: int, count: int, scratch: int) -> None:
    """Rows first .. first + count - 1. scratch: of scratch_bytes(V)."""
    vocab_size = record.vocab_size
    for a in range(first, first + count):
        at = record.tokens + 8 * a
        row = read_i64(at)
        begin_row(record.logits + 4 * vocab_size * a, vocab_size, scratch)
        token = chunk = _find_largest(scratch)
        if chunk != NO_TOKEN:
            best = read_f32(scratch + LARGEST + 4 * chunk)
            temperature = read_f64(_at(record, _TEMPERATURE, row))
            write_f64(scratch + BEST, best)
            write_f64(scratch + TEMPERATURE, temperature)
            if temperature == 0:
                token = chunk * CHUNK + lowest_bit(at_least(logits_at(chunk, scratch), best))
            else:
                token = _draw(record, row, scratch)
        write_i64(at, token)
