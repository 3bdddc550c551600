"""kernels.choose_tokens for rows of logits, one at a time.

A row is read once for the largest logit of each chunk of 64 tokens. What comes then depends on it:

    greedy                 the first chunk with the largest of all, its first token
    temperature alone      weights of all tokens, added up from id 0; the sum before each chunk is noted, and
                           the weights of the chunk that the number falls into are computed once more
    with a filter          candidates: the tokens from a score on, below which the filter leaves nothing.
                           Only chunks that reach it are looked at. All else happens among the candidates,
                           which stay in the order of their ids

The score from which on tokens are candidates: with top_k, the k-th best of the chunks' largest, since at
least k tokens reach that; with top_p, that of a weight of which the whole vocabulary together has less than
what may be left out; with min_p, that of the smallest weight that stays.
"""

from math import inf, log

from numba import float32, float64, njit

from kernels.cpu.compiler import compiled
from kernels.cpu.sampling_candidates import collect, keep_best, pick, take_chunk, total_of
from kernels.cpu.sampling_cut import UNKNOWN as NOT_ENOUGH
from kernels.cpu.sampling_cut import cut
from kernels.cpu.sampling_scratch import LARGEST, chunk_at, copy_last, scratch_places
from kernels.cpu.sampling_uniform import uniform
from kernels.cpu.sampling_vectors import (
    CHUNK,
    LOWEST,
    at_least,
    chunk_largest,
    lowest_bit,
    read_f32,
    read_f64,
    weigh,
    write_f64,
    write_i64,
)
from kernels.cpu.vectors import read_i64

NO_TOKEN = -1
# Of a record, each of 8 bytes: addresses but for V.
FIELDS = (
    "logits",  # [A, V] float32, contiguous
    "vocab_size",  # V
    "rows",  # [A] int64: where a row's parameters are in what follows
    "positions",  # [A] int64
    "temperature",  # float64; 0: greedy
    "top_k",  # int64; 0: all
    "top_p",  # float64; 1: all
    "min_p",  # float64; 0: all
    "keys",  # [2] int64 each: low and high word of the seed
    "indexes",  # int64: sequence index
    "tokens",  # [A] int64: the result
)
_LOGITS, _V, _ROWS, _POSITIONS, _TEMPERATURE, _TOP_K, _TOP_P, _MIN_P, _KEYS, _INDEXES, _TOKENS = range(
    0, 8 * len(FIELDS), 8
)


@njit(error_model="numpy")
def _find_largest(x: int, vocab_size: int, chunks: int, scratch: int) -> int:
    """Notes the largest of each chunk. Returns the first chunk that has the largest of all; NO_TOKEN where
    that is not finite."""
    whole, largest = vocab_size // CHUNK, scratch + LARGEST
    if whole:
        chunk_largest(x, whole, largest)
    if whole < chunks:
        copy_last(x, vocab_size, scratch)
        chunk_largest(scratch, 1, largest + 4 * whole)
    best, at = float32(-inf), NO_TOKEN
    for chunk in range(chunks):
        score = read_f32(largest + 4 * chunk)
        if not score < inf:  # or NaN
            return NO_TOKEN
        if score > best:
            best, at = score, chunk
    return at


@njit(error_model="numpy")
def _weigh_all(
    x: int, vocab_size: int, chunks: int, largest: float, temperature: float, scratch: int
) -> float:
    """The sum of all weights, from id 0 on, noted before each chunk."""
    before, _, _, weights, _ = scratch_places(chunks, scratch)
    total = 0.0
    for chunk in range(chunks):
        write_f64(before + 8 * chunk, total)
        weigh(chunk_at(x, vocab_size, chunk, scratch), largest, temperature, weights, CHUNK // 8)
        for i in range(CHUNK):
            total += read_f64(weights + 8 * i)
    return total


@njit(error_model="numpy")
def _chunk_of(before: int, chunks: int, target: float) -> int:
    """In which the sum of all weights exceeds the target."""
    chunk = 0
    while chunk + 1 < chunks and read_f64(before + 8 * (chunk + 1)) <= target:
        chunk += 1
    return chunk


@njit(error_model="numpy")
def _kth_chunk(chunks: int, k: int, scratch: int) -> float:
    """The k-th best of the chunks' largest; LOWEST where fewer have anything, or none but masked tokens."""
    _, _, _, weights, free = scratch_places(chunks, scratch)
    for chunk in range(chunks):
        write_f64(weights + 8 * chunk, 1.0)
    place = cut(scratch + LARGEST, weights, chunks, float64(k), 0.0, free)
    limit: float = float32(LOWEST)
    if place != NOT_ENOUGH:
        limit = max(limit, read_f32(scratch + LARGEST + 4 * place))
    return limit


@njit(error_model="numpy")
def _score_of(largest: float, temperature: float, log_weight: float) -> float:
    """A score that any with such a weight has; not much lower than need be."""
    score = largest + temperature * (log_weight - 1e-6)
    limit: float = float32(max(score - 1e-6 * abs(score) - 1e-12 * abs(largest) - 1e-44, LOWEST))
    return limit


@njit(error_model="numpy")
def _draw(
    x: int,
    vocab_size: int,
    chunks: int,
    largest: float,
    temperature: float,
    k: int,
    top_p: float,
    min_p: float,
    u: float,
    scratch: int,
) -> int:
    before, scores, ids, weights, _ = scratch_places(chunks, scratch)
    everything = k == 0 and min_p == 0 and top_p == 1
    first, target, total = 0.0, 0.0, 0.0
    if everything or (k == 0 and top_p < 1):
        total = _weigh_all(x, vocab_size, chunks, largest, temperature, scratch)
    if everything:
        target = u * total
        chunk = _chunk_of(before, chunks, target)
        first = read_f64(before + 8 * chunk)
        n = take_chunk(x, vocab_size, chunks, chunk, scratch)
    else:
        if k > 0:
            limit = _kth_chunk(chunks, k, scratch)
        else:
            share = min_p if top_p == 1 else min(1.0, 0.5 * (1 - top_p) * total / vocab_size)
            limit = _score_of(largest, temperature, log(share))
        n = collect(x, vocab_size, chunks, limit, scratch)
        if 0 < k < n:
            n = keep_best(chunks, n, float64(k), 0.0, scratch)
    weigh(scores, largest, temperature, weights, (n + 7) // 8)
    if top_p < 1:
        total = total_of(weights, n, 0.0) if k > 0 else total
        n = keep_best(chunks, n, top_p * total, (n + 8) * 2.0**-52 * top_p * total, scratch)
    if not everything:
        target = u * total_of(weights, n, min_p)
    token: int = pick(ids, weights, n, min_p, first, target)
    return token


@compiled("void(int64, int64, int64, int64)")
def choose_rows(record: int, first: int, count: int, scratch: int) -> None:
    """Rows first .. first + count - 1. record: address of FIELDS. scratch: of scratch_bytes(V)."""
    vocab_size = read_i64(record + _V)
    chunks = (vocab_size + CHUNK - 1) // CHUNK
    for a in range(first, first + count):
        row = read_i64(read_i64(record + _ROWS) + 8 * a)
        x = read_i64(record + _LOGITS) + 4 * vocab_size * a
        token = chunk = _find_largest(x, vocab_size, chunks, scratch)
        if chunk != NO_TOKEN:
            best = read_f32(scratch + LARGEST + 4 * chunk)
            temperature = read_f64(read_i64(record + _TEMPERATURE) + 8 * row)
            if temperature == 0:
                bits = at_least(chunk_at(x, vocab_size, chunk, scratch), best)
                token = chunk * CHUNK + lowest_bit(bits)
            else:
                key = read_i64(record + _KEYS) + 16 * row
                index = read_i64(read_i64(record + _INDEXES) + 8 * row)
                position = read_i64(read_i64(record + _POSITIONS) + 8 * a)
                token = _draw(
                    x,
                    vocab_size,
                    chunks,
                    float64(best),
                    temperature,
                    read_i64(read_i64(record + _TOP_K) + 8 * row),
                    read_f64(read_i64(record + _TOP_P) + 8 * row),
                    read_f64(read_i64(record + _MIN_P) + 8 * row),
                    uniform(read_i64(key), read_i64(key + 8), index, position),
                    scratch,
                )
        write_i64(read_i64(record + _TOKENS) + 8 * a, token)
