"""A draw from all tokens of a row, or from those that limits leave: kernels.ops.sampling.inverse_cdf.

The weights of each chunk of 64 tokens are added up in vectors, and the sum before each chunk is noted. Then
the chunk that the number falls into is known, and only its weights are made as torch makes them. The sums
are not taken token by token, so that they may be off in their last bits. Where these could matter, which is
in one of 100,000 draws from a flat distribution over 152,000 tokens, the answer is that it is not known.
"""

from math import inf

from kernels.cpu.isa.doubles import WIDE
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i64, write_f32, write_f64
from kernels.cpu.sampling.filters.candidates import NOT_KNOWN
from kernels.cpu.sampling.filters.thresholds import (
    LOG2_E,
    last_of_mass,
    lowest_score,
    next_above,
    sum_error,
)
from kernels.cpu.sampling.filters.weight_sums import chunk_mass
from kernels.cpu.sampling.scratch import (
    BEST,
    CHUNK_WEIGHTS,
    CHUNKS,
    COPY,
    LARGEST,
    TEMPERATURE,
    VOCAB_SIZE,
    logit_of,
    logits_at,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import CHUNK, LOWEST, weigh


def _copy_kept(chunk: int, limit: float, last: int, scratch: int) -> int:
    """The address of a copy of a chunk's logits, -inf below the limit, and for its equals behind the last
    token."""
    x, copy = logits_at(chunk, scratch), scratch + COPY
    for i in range(CHUNK):
        score = read_f32(x + 4 * i)
        kept = score > limit or (score == limit and chunk * CHUNK + i <= last)
        write_f32(copy + 4 * i, score if kept else -inf)
    return copy


def _kept(chunk: int, limit: float, last: int, scratch: int) -> tuple[int, float]:
    """The address of a chunk's logits, and the one from which on its tokens stay."""
    if chunk == last // CHUNK:
        return _copy_kept(chunk, limit, last, scratch), LOWEST
    least = limit if chunk < last // CHUNK else next_above(limit, scratch)
    return logits_at(chunk, scratch), least


def _add_up(limit: float, last: int, enough: float, scratch: int) -> float:
    """The sum of the weights that stay, noted before each chunk. Ends where it exceeds `enough`."""
    before, total = scratch_places(scratch)[0], 0.0
    best, rate = read_f64(scratch + BEST), LOG2_E / read_f64(scratch + TEMPERATURE)
    write_f64(before, 0.0)
    for chunk in range(read_i64(scratch + CHUNKS)):
        if read_f32(scratch + LARGEST + 4 * chunk) >= limit:
            x, least = _kept(chunk, limit, last, scratch)
            total += chunk_mass(x, least, best, rate)
        write_f64(before + 8 * (chunk + 1), total)
        if total > enough:
            break
    return total


def _limits(top_p: float, min_p: float, scratch: int) -> tuple[float, int, float]:
    """What the filters leave: from which logit on, of its equals up to which token, and the sum of the
    weights, 0 where that is not known yet. NOT_KNOWN instead of the token where last bits could matter."""
    limit, last, total = LOWEST, read_i64(scratch + VOCAB_SIZE), 0.0
    if top_p < 1:
        last, total = last_of_mass(top_p, scratch)
        limit = logit_of(last, scratch) if last != NOT_KNOWN else limit
    if min_p > 0 and last != NOT_KNOWN:
        lowest = lowest_score(min_p, scratch)
        if lowest > limit:
            limit, last, total = lowest, read_i64(scratch + VOCAB_SIZE), 0.0
    return limit, last, total


def draw_from_all(top_p: float, min_p: float, u: float, scratch: int) -> int:
    """A token; NOT_KNOWN where torch is to choose it."""
    limit, last, total = _limits(top_p, min_p, scratch)
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
