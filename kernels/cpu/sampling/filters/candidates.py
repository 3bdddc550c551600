"""The tokens that a filter may leave: their scores, ids and weights, by ascending id, in scratch memory."""

from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i32, read_i64, write_f32, write_f64, write_i32
from kernels.cpu.sampling.filters.top_k_cut import UNKNOWN, cut
from kernels.cpu.sampling.scratch import CHUNKS, LARGEST, logits_at, scratch_places
from kernels.cpu.sampling.vector_loops import CHUNK, at_least

NOT_KNOWN = -2
"""Instead of a number of candidates, and of a token: see kernels.cpu.sampling.filters.top_k_cut."""


def note(bits: int, at: int, first_id: int, n: int, x: int, ids: int) -> int:
    """The logits of a chunk that have a bit become candidates n, n + 1, ... Returns how many there are."""
    while bits != 0:
        i = lowest_bit(bits)
        bits &= bits - 1
        write_f32(x + 4 * n, read_f32(at + 4 * i))
        write_i32(ids + 4 * n, first_id + i)
        n += 1
    return n


def collect(limit: float, scratch: int) -> int:
    """The tokens whose logits reach the limit. Returns how many there are."""
    _, x, ids, _, _ = scratch_places(scratch)
    n = 0
    for chunk in range(read_i64(scratch + CHUNKS)):
        if read_f32(scratch + LARGEST + 4 * chunk) >= limit:
            at = logits_at(chunk, scratch)
            n = note(at_least(at, limit), at, chunk * CHUNK, n, x, ids)
    return n


def keep_best(n: int, target: float, error: float, scratch: int) -> int:
    """Keeps the best of n candidates, until their weights reach the target. How many; or NOT_KNOWN."""
    _, x, ids, weights, free = scratch_places(scratch)
    last = cut(x, weights, n, 0.0, target, error, free)
    if last == UNKNOWN:
        return NOT_KNOWN
    limit, kept = read_f32(x + 4 * last), 0
    for i in range(n):
        score = read_f32(x + 4 * i)
        write_f32(x + 4 * kept, score)
        write_i32(ids + 4 * kept, read_i32(ids + 4 * i))
        write_f64(weights + 8 * kept, read_f64(weights + 8 * i))
        kept += int(score > limit or (score == limit and i <= last))
    return kept


def total_of(weights: int, n: int, least: float) -> float:
    """Of those weights that are at least that, from the lowest id up."""
    total = 0.0
    for i in range(n):
        weight = read_f64(weights + 8 * i)
        total += weight if weight >= least else 0.0
    return total


def pick(ids: int, weights: int, n: int, least: float, target: float) -> int:
    """kernels.ops.sampling.inverse_cdf of those weights that are at least `least`: the candidate at which
    their sum exceeds the target."""
    total = 0.0
    for i in range(n):
        weight = read_f64(weights + 8 * i)
        total += weight if weight >= least else 0.0
        if total > target:
            return read_i32(ids + 4 * i)
    return NOT_KNOWN
