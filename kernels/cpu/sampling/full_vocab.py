"""A draw from all tokens of a row, or from those that limits leave: kernels.ops.sampling.choose.inverse_cdf.

Filters of a whole vocabulary are limits: from which score on tokens stay. Nothing is sorted. A share of the
sum: one pass adds each weight to one of 256 buckets, by its logit; the ranking ends in one of them, whose
tokens alone are looked at. A share of the largest weight: the lowest float32 with a weight that stays, by
bisection.

The weights of each chunk of 64 tokens are added up in vectors, and the sum before each chunk is noted. Then
the chunk that the number falls into is known, and only its weights are made as torch makes them. The sums are
not taken token by token, so that they may be off in their last bits. Where these could matter, which is in
one of 100,000 draws from a flat distribution over 152,000 tokens, the answer is UNKNOWN."""

from math import inf, log

from kernels.cpu.compiler.language import float32
from kernels.cpu.isa.doubles import WIDE
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i32, read_i64, write_f32, write_f64, write_i32
from kernels.cpu.sampling.candidates import cut, note
from kernels.cpu.sampling.scratch import (
    BEST,
    CHUNK_SUMS,
    CHUNK_WEIGHTS,
    CHUNKS,
    COPY,
    LARGEST,
    SUMS,
    TEMPERATURE,
    VOCAB_SIZE,
    logit_of,
    logits_at,
    scratch_places,
)
from kernels.cpu.sampling.vector_loops import (
    ABOUT,
    BUCKETS,
    CHUNK,
    LOWEST,
    chunk_mass,
    chunk_places,
    chunk_weights,
    in_bucket,
    weigh,
)
from kernels.ops.sampling.columns import UNKNOWN

LOG2_E = 1.4426950408889634


def sum_error(vocab_size: int) -> float:
    """How far a sum of weights in vectors, and one from id 0 on, may be from one another: a share of all."""
    return 2 * (vocab_size * 2.0**-53 + ABOUT)


def _buckets_per_score(share: float, scratch: int) -> float:
    """So that they reach down to about the lowest logit, as every 64th token shows it; or to a depth below
    which the weights of a vocabulary together are half of what the share leaves out."""
    vocab_size, top = read_i64(scratch + VOCAB_SIZE), read_f64(scratch + BEST)
    depth = read_f64(scratch + TEMPERATURE) * -log(0.5 * (1 - share) / vocab_size)
    least = top
    step = 1 if vocab_size < 64 * CHUNK else CHUNK
    for token in range(0, vocab_size, step):
        score = logit_of(token, scratch)
        least = min(least, score) if score > -inf else least
    return float32(min(BUCKETS / min(top - least, depth), 1e38))  # infinity times 0 would be no number


def _fill_buckets(per_score: float, scratch: int) -> float:
    """Returns the sum of all weights."""
    sums, weights, places = scratch + SUMS, scratch + CHUNK_WEIGHTS, scratch + CHUNK_SUMS
    best, rate = read_f64(scratch + BEST), LOG2_E / read_f64(scratch + TEMPERATURE)
    for i in range(BUCKETS * WIDE):
        write_f64(sums + 8 * i, 0.0)
    total = 0.0
    for chunk in range(read_i64(scratch + CHUNKS)):
        x = logits_at(chunk, scratch)
        chunk_places(x, best, per_score, places)
        total += chunk_weights(x, best, rate, weights)
        for i in range(CHUNK):
            place = sums + read_i32(places + 4 * i)
            write_f64(place, read_f64(place) + read_f64(weights + 8 * i))
    return total


def _mass_until(n: int, limit: float, last: int, scratch: int) -> float:
    """The weights of those candidates that rank no lower than the last."""
    _, scores, ids, weights, _ = scratch_places(scratch)
    mass = 0.0
    for i in range(n):
        score = read_f32(scores + 4 * i)
        kept = score > limit or (score == limit and read_i32(ids + 4 * i) <= last)
        mass += read_f64(weights + 8 * i) if kept else 0.0
    return mass


def last_of_mass(share: float, scratch: int) -> tuple[int, float]:
    """The last token, by rank, that kernels.ops.sampling.filters.top_p keeps, and the sum of all weights
    that it keeps; UNKNOWN and 0 where the last bits could matter."""
    _, scores, ids, weights, free = scratch_places(scratch)
    best, temperature = read_f64(scratch + BEST), read_f64(scratch + TEMPERATURE)
    per_score = _buckets_per_score(share, scratch)
    total = _fill_buckets(per_score, scratch)
    target, before, reached, bucket = share * total, 0.0, 0.0, -1
    while reached < target and bucket + 1 < BUCKETS:
        bucket += 1
        before = reached
        for lane in range(WIDE):
            reached += read_f64(scratch + SUMS + 8 * (WIDE * bucket + lane))
    n = 0
    for chunk in range(read_i64(scratch + CHUNKS)):
        at = logits_at(chunk, scratch)
        n = note(in_bucket(at, best, per_score, bucket), at, chunk * CHUNK, n, scores, ids)
    weigh(scores, best, temperature, weights, (n + 7) // 8)
    error = sum_error(read_i64(scratch + VOCAB_SIZE)) * total
    place = cut(scores, weights, n, before, target, error, free)
    if place == UNKNOWN:
        return UNKNOWN, 0.0
    last = read_i32(ids + 4 * place)
    return last, before + _mass_until(n, read_f32(scores + 4 * place), last, scratch)


def _other_order(bits: int) -> int:
    """The bits of a float32 to a number that ascends as it does, and back."""
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def next_above(score: float, scratch: int) -> float:
    """The lowest float32 above this one."""
    write_f32(scratch + COPY, score + float32(0.0))  # -0.0 becomes 0.0: they are equals
    write_i32(scratch + COPY, _other_order(_other_order(read_i32(scratch + COPY)) + 1))
    return read_f32(scratch + COPY)


def lowest_score(share: float, scratch: int) -> float:
    """The lowest logit with a weight of at least a share of the largest one."""
    best, temperature = read_f64(scratch + BEST), read_f64(scratch + TEMPERATURE)
    lane, weight = scratch + COPY, scratch + CHUNK_WEIGHTS
    for i in range(WIDE):
        write_f32(lane + 4 * i, best)
    high = _other_order(read_i32(lane))
    write_f32(lane, float32(LOWEST))
    low = _other_order(read_i32(lane)) - 1
    while low + 1 < high:
        middle = (low + high) >> 1
        write_i32(lane, _other_order(middle))
        weigh(lane, best, temperature, weight, 1)
        if read_f64(weight) >= share:
            high = middle
        else:
            low = middle
    write_i32(lane, _other_order(high))
    return read_f32(lane)


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
    before, largest, total = scratch_places(scratch)[0], read_i64(scratch + LARGEST), 0.0
    best, rate = read_f64(scratch + BEST), LOG2_E / read_f64(scratch + TEMPERATURE)
    write_f64(before, 0.0)
    for chunk in range(read_i64(scratch + CHUNKS)):
        if read_f32(largest + 4 * chunk) >= limit:
            x, least = _kept(chunk, limit, last, scratch)
            total += chunk_mass(x, least, best, rate)
        write_f64(before + 8 * (chunk + 1), total)
        if total > enough:
            break
    return total


def _limits(top_p: float, min_p: float, scratch: int) -> tuple[float, int, float]:
    """What the filters leave: from which logit on, of its equals up to which token, and the sum of the
    weights, 0 where that is not known yet. UNKNOWN instead of the token where last bits could matter."""
    limit, last, total = LOWEST, read_i64(scratch + VOCAB_SIZE), 0.0
    if top_p < 1:
        last, total = last_of_mass(top_p, scratch)
        limit = logit_of(last, scratch) if last != UNKNOWN else limit
    if min_p > 0 and last != UNKNOWN:
        lowest = lowest_score(min_p, scratch)
        if lowest > limit:
            limit, last, total = lowest, read_i64(scratch + VOCAB_SIZE), 0.0
    return limit, last, total


def draw_from_all(top_p: float, min_p: float, u: float, scratch: int) -> int:
    """A token; UNKNOWN where torch is to choose it."""
    limit, last, total = _limits(top_p, min_p, scratch)
    if last == UNKNOWN:
        return UNKNOWN
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
            return chunk * CHUNK + i if certain else UNKNOWN
    return UNKNOWN
