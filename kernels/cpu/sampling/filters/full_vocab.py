"""A draw from all tokens of a row, or from those that limits leave: kernels.ops.sampling.inverse_cdf.

The weights of each chunk of 64 tokens are added up in vectors, and the sum before each chunk is noted. Then
the chunk that the number falls into is known, and only its weights are made as torch makes them. The sums
are not taken token by token, so that they may be off in their last bits. Where these could matter, which is
in one of 100,000 draws from a flat distribution over 152,000 tokens, the answer is that it is not known.
"""

from math import inf, log

from kernels.cpu.isa.doubles import WIDE
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i64, write_f32, write_f64, write_i64
from kernels.cpu.sampling.filters.candidates import NOT_KNOWN
from kernels.cpu.sampling.filters.thresholds import (
    LOG2_E,
    depth_of,
    last_of_mass,
    lowest_score,
    next_above,
    sum_error,
)
from kernels.cpu.sampling.filters.weight_sums import chunk_distances, chunk_entropy, chunk_mass
from kernels.cpu.sampling.scratch import (
    BEST,
    CHUNK_WEIGHTS,
    CHUNKS,
    COPY,
    LARGEST,
    SCORES,
    TEMPERATURE,
    VOCAB_SIZE,
    logits_at,
    score_of,
    scores_at,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import CHUNK, LOWEST, chunk_largest, weigh


def _copy_kept(chunk: int, limit: float, last: int, scratch: int) -> int:
    """The address of a chunk's logits, -inf where the score is below the limit, and of its equals behind the
    last token."""
    scores, x, copy = scores_at(chunk, scratch), logits_at(chunk, scratch), scratch + COPY
    for i in range(CHUNK):
        score = read_f32(scores + 4 * i)
        kept = score > limit or (score == limit and chunk * CHUNK + i <= last)
        write_f32(copy + 4 * i, read_f32(x + 4 * i) if kept else -inf)
    return copy


def _kept(chunk: int, limit: float, last: int, scratch: int) -> tuple[int, int, float]:
    """Addresses of a chunk's scores and logits, and the score from which on its tokens stay."""
    if chunk == last // CHUNK:
        copy = _copy_kept(chunk, limit, last, scratch)
        return copy, copy, LOWEST
    least = limit if chunk < last // CHUNK else next_above(limit, scratch)
    return scores_at(chunk, scratch), logits_at(chunk, scratch), least


def _add_up(limit: float, last: int, enough: float, scratch: int) -> float:
    """The sum of the weights that stay, noted before each chunk. Ends where it exceeds `enough`."""
    before, total = scratch_places(scratch)[0], 0.0
    best, rate = read_f64(scratch + BEST), LOG2_E / read_f64(scratch + TEMPERATURE)
    write_f64(before, 0.0)
    for chunk in range(read_i64(scratch + CHUNKS)):
        if read_f32(scratch + LARGEST + 4 * chunk) >= limit:
            scores, x, least = _kept(chunk, limit, last, scratch)
            total += chunk_mass(scores, x, least, best, rate)
        write_f64(before + 8 * (chunk + 1), total)
        if total > enough:
            break
    return total


def _score_by_distance(limit: float, last: int, scratch: int) -> None:
    """From now on tokens are ranked as kernels.ops.sampling.typical_p does, and those that do not stay are
    -inf."""
    chunks = read_i64(scratch + CHUNKS)
    best, temperature = read_f64(scratch + BEST), read_f64(scratch + TEMPERATURE)
    mass, logs, to = 0.0, 0.0, scratch_places(scratch)[4]
    for chunk in range(chunks):
        if read_f32(scratch + LARGEST + 4 * chunk) >= limit:
            _, x, least = _kept(chunk, limit, last, scratch)
            of_chunk, of_logs = chunk_entropy(x, least, best, LOG2_E / temperature)
            mass, logs = mass + of_chunk, logs + of_logs
    mean = logs / mass * log(2.0)
    for chunk in range(chunks):
        _, x, least = _kept(chunk, limit, last, scratch)
        chunk_distances(x, least, best, 1 / temperature, mean, to + 4 * CHUNK * chunk)
    chunk_largest(to, chunks, scratch + LARGEST)
    write_i64(scratch + SCORES, to)


def _limits(top_p: float, min_p: float, typical_p: float, scratch: int) -> tuple[float, int, float]:
    """What the filters leave: from which score on, of its equals up to which token, and the sum of the
    weights, 0 where that is not known yet. NOT_KNOWN instead of the token where last bits could matter."""
    vocab_size = read_i64(scratch + VOCAB_SIZE)
    limit, last, total = LOWEST, vocab_size, 0.0
    if top_p < 1:
        depth = read_f64(scratch + TEMPERATURE) * depth_of(top_p, vocab_size)
        last, total = last_of_mass(top_p, read_f64(scratch + BEST), depth, scratch)
        limit = score_of(last, scratch) if last != NOT_KNOWN else limit
    if min_p > 0 and last != NOT_KNOWN:
        lowest = lowest_score(min_p, scratch)
        if lowest > limit:
            limit, last, total = lowest, vocab_size, 0.0
    if typical_p < 1 and last != NOT_KNOWN:
        _score_by_distance(limit, last, scratch)
        last, total = last_of_mass(typical_p, 0.0, depth_of(typical_p, vocab_size), scratch)
        limit = score_of(last, scratch) if last != NOT_KNOWN else limit
    return limit, last, total


def draw_from_all(top_p: float, min_p: float, typical_p: float, u: float, scratch: int) -> int:
    """A token; NOT_KNOWN where torch is to choose it."""
    limit, last, total = _limits(top_p, min_p, typical_p, scratch)
    if last == NOT_KNOWN:
        return NOT_KNOWN
    reached = _add_up(limit, last, u * total if total > 0 else inf, scratch)
    total = total if total > 0 else reached
    target, chunk, before = u * total, 0, scratch_places(scratch)[0]
    while chunk + 1 < read_i64(scratch + CHUNKS) and read_f64(before + 8 * (chunk + 1)) <= target:
        chunk += 1
    weights, kept = scratch + CHUNK_WEIGHTS, _copy_kept(chunk, limit, last, scratch)
    weigh(kept, read_f64(scratch + BEST), read_f64(scratch + TEMPERATURE), weights, CHUNK // WIDE)
    mass, error = read_f64(before + 8 * chunk), sum_error(read_i64(scratch + VOCAB_SIZE)) * total
    for i in range(CHUNK):
        below, mass = mass, mass + read_f64(weights + 8 * i)
        if mass > target:
            certain = mass - target > error and (below == 0 or target - below >= error)
            return chunk * CHUNK + i if certain else NOT_KNOWN
    return NOT_KNOWN
