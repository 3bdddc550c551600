"""Filters of a whole vocabulary as limits: from which score on tokens stay.

Nothing is sorted. top_p: one pass adds each weight to one of 256 buckets, by its score; the ranking ends in
one of them, whose tokens alone are looked at. min_p: the lowest float32 with a weight that stays, by
bisection.
"""

from math import inf, log

from kernels.cpu.language import float32
from kernels.cpu.sampling_candidates import NOT_KNOWN, note
from kernels.cpu.sampling_cut import UNKNOWN, cut
from kernels.cpu.sampling_masses import ABOUT, BUCKETS, chunk_buckets, in_bucket
from kernels.cpu.sampling_scratch import CHUNK_SUMS, CHUNK_WEIGHTS, COPY, SUMS, chunk_at, scratch_places
from kernels.cpu.sampling_vectors import (
    CHUNK,
    LOWEST,
    WIDE,
    read_f32,
    read_f64,
    read_i32,
    weigh,
    write_f32,
    write_f64,
    write_i32,
)

LOG2_E = 1.4426950408889634


def sum_error(vocab_size: int) -> float:
    """How far a sum of weights in vectors, and one from id 0 on, may be from one another: a share of all."""
    return 2 * (vocab_size * 2.0**-53 + ABOUT)


def _buckets_per_score(
    x: int, vocab_size: int, chunks: int, largest: float, temperature: float, top_p: float
) -> float:
    """So that they reach down to about the smallest logit, seen in every 64th; or to a weight of which the
    whole vocabulary together has less than half of what may be left out."""
    least, step = largest, 1 if vocab_size < 64 * CHUNK else CHUNK
    for token in range(0, vocab_size, step):
        score = read_f32(x + 4 * token)
        least = min(least, score) if score > -inf else least
    depth = min(largest - least, temperature * -log(0.5 * (1 - top_p) / vocab_size))
    per_score: float = float32(min(BUCKETS / depth, 1e38))  # infinity times 0 would be no number
    return per_score


def _fill_buckets(
    x: int, vocab_size: int, chunks: int, largest: float, rate: float, per_score: float, scratch: int
) -> float:
    """Returns the sum of all weights."""
    sums, weights, places = scratch + SUMS, scratch + CHUNK_WEIGHTS, scratch + CHUNK_SUMS
    for i in range(BUCKETS * WIDE):
        write_f64(sums + 8 * i, 0.0)
    total = 0.0
    for chunk in range(chunks):
        at = chunk_at(x, vocab_size, chunk, scratch)
        total += chunk_buckets(at, largest, rate, float32(per_score), weights, places)
        for i in range(CHUNK):
            place = sums + read_i32(places + 4 * i)
            write_f64(place, read_f64(place) + read_f64(weights + 8 * i))
    return total


def _mass_until(x: int, ids: int, weights: int, n: int, limit: float, last: int) -> float:
    """The weights of those candidates that rank no lower than the last."""
    mass = 0.0
    for i in range(n):
        score = read_f32(x + 4 * i)
        kept = score > limit or (score == limit and read_i32(ids + 4 * i) <= last)
        mass += read_f64(weights + 8 * i) if kept else 0.0
    return mass


def last_of_mass(
    x: int, vocab_size: int, chunks: int, largest: float, temperature: float, top_p: float, scratch: int
) -> tuple[int, float]:
    """The last token, by rank, that kernels.top_mass keeps, and the sum of all weights that it keeps;
    NOT_KNOWN and 0 where the last bits could matter."""
    _, scores, ids, weights, free = scratch_places(chunks, scratch)
    per_score = _buckets_per_score(x, vocab_size, chunks, largest, temperature, top_p)
    total = _fill_buckets(x, vocab_size, chunks, largest, LOG2_E / temperature, per_score, scratch)
    target, before, reached, bucket = top_p * total, 0.0, 0.0, -1
    while reached < target and bucket + 1 < BUCKETS:
        bucket += 1
        before = reached
        for lane in range(WIDE):
            reached += read_f64(scratch + SUMS + 8 * (WIDE * bucket + lane))
    n = 0
    for chunk in range(chunks):
        at = chunk_at(x, vocab_size, chunk, scratch)
        n = note(in_bucket(at, largest, float32(per_score), bucket), at, chunk * CHUNK, n, scores, ids)
    weigh(scores, largest, temperature, weights, (n + 7) // 8)
    place = cut(scores, weights, n, before, target, sum_error(vocab_size) * total, free)
    if place == UNKNOWN:
        return NOT_KNOWN, 0.0
    last = read_i32(ids + 4 * place)
    return last, before + _mass_until(scores, ids, weights, n, read_f32(scores + 4 * place), last)


def _other_order(bits: int) -> int:
    """The bits of a float32 to a number that ascends as it does, and back."""
    return bits if bits >= 0 else bits ^ 0x7FFFFFFF


def next_above(score: float, scratch: int) -> float:
    """The lowest float32 above this one."""
    write_f32(scratch + COPY, score + float32(0.0))  # -0.0 becomes 0.0: they are equals
    write_i32(scratch + COPY, _other_order(_other_order(read_i32(scratch + COPY)) + 1))
    following: float = read_f32(scratch + COPY)
    return following


def lowest_score(largest: float, temperature: float, min_p: float, scratch: int) -> float:
    """Of a weight of at least min_p."""
    lane, weight = scratch + COPY, scratch + CHUNK_WEIGHTS
    for i in range(WIDE):
        write_f32(lane + 4 * i, largest)
    high = _other_order(read_i32(lane))
    write_f32(lane, float32(LOWEST))
    low = _other_order(read_i32(lane)) - 1
    while low + 1 < high:
        middle = (low + high) >> 1
        write_i32(lane, _other_order(middle))
        weigh(lane, largest, temperature, weight, 1)
        if read_f64(weight) >= min_p:
            high = middle
        else:
            low = middle
    write_i32(lane, _other_order(high))
    score: float = read_f32(lane)
    return score
