"""The tokens that a filter may leave: their scores, ids and weights, by ascending id, in scratch memory; and
where their ranking is cut."""

from kernels.cpu.isa.lanes import lowest_bit
from kernels.cpu.isa.vectors import read_f32, read_f64, read_i32, read_i64, write_f32, write_f64, write_i32
from kernels.cpu.sampling.scratch import CHUNKS, LARGEST, logits_at, scratch_places
from kernels.cpu.sampling.vector_loops import CHUNK, at_least, masses
from kernels.ops.sampling.columns import UNKNOWN


def _keep(x: int, places: int, weights: int, n: int, pivot: float, above: bool) -> int:
    """Those above the pivot, or those below it, move to the front. Returns how many."""
    kept = 0
    for i in range(n):
        score = read_f32(x + 4 * i)
        write_f32(x + 4 * kept, score)
        write_i32(places + 4 * kept, read_i32(places + 4 * i))
        write_f64(weights + 8 * kept, read_f64(weights + 8 * i))
        kept += int((score > pivot) if above else (score < pivot))
    return kept


def _last_equal(
    x: int, places: int, weights: int, n: int, pivot: float, mass: float, target: float, error: float
) -> int:
    """The first of the pivot's equals with which the mass, that of all above them, reaches the target."""
    for i in range(n):
        if read_f32(x + 4 * i) == pivot:
            following = mass + read_f64(weights + 8 * i)
            if following >= target:
                certain = target - mass > error and following - target >= error
                return read_i32(places + 4 * i) if certain else UNKNOWN
            mass = following
    return UNKNOWN


def cut(x: int, weights: int, n: int, before: float, target: float, error: float, scratch: int) -> int:
    """Cuts a ranking: by descending score, ascending place among equals, the shortest beginning whose weights
    sum to at least a target. With weights of 1 and a target of k it is the k best. Returns the place of the
    last that is kept; UNKNOWN where it is not certain, and where all are not enough.

    Nothing is sorted: a score is picked, and the weights of what is above it and of its equals are summed;
    then the answer is among the higher ones, the equals or the lower ones, and only those stay. About 2 n
    scores are looked at in all. The sum of what is above is not taken in the order of the ranking, so that it
    may be off in its last bits: where these could matter, the caller sorts.

    x, weights: addresses of [n] float32 and float64, no NaN. before: the weight of what ranks above all of
    these. error: how far a sum of weights may be from the target. scratch: of cut_bytes(n).
    """
    left, places = scratch, scratch + 4 * (n + 8)
    masses_left = places + 4 * (n + 8)
    for i in range(n):
        write_f32(left + 4 * i, read_f32(x + 4 * i))
        write_i32(places + 4 * i, i)
        write_f64(masses_left + 8 * i, read_f64(weights + 8 * i))
    while n > 0:
        for i in range(n, n + 8):
            write_f64(masses_left + 8 * i, 0.0)
        a, b, c = read_f32(left), read_f32(left + 4 * (n // 2)), read_f32(left + 4 * (n - 1))
        pivot = max(min(a, b), min(max(a, b), c))
        above, with_equals = masses(left, masses_left, (n + 7) // 8, pivot)
        higher, reached = before + above, before + with_equals
        if higher < target <= reached:
            return _last_equal(left, places, masses_left, n, pivot, higher, target, error)
        if higher < target:
            before = reached
        n = _keep(left, places, masses_left, n, pivot, higher >= target)
    return UNKNOWN


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
    largest = read_i64(scratch + LARGEST)
    for chunk in range(read_i64(scratch + CHUNKS)):
        if read_f32(largest + 4 * chunk) >= limit:
            at = logits_at(chunk, scratch)
            n = note(at_least(at, limit), at, chunk * CHUNK, n, x, ids)
    return n


def keep_best(n: int, target: float, error: float, scratch: int) -> int:
    """Keeps the best of n candidates, until their weights reach the target. How many; or UNKNOWN."""
    _, x, ids, weights, free = scratch_places(scratch)
    last = cut(x, weights, n, 0.0, target, error, free)
    if last == UNKNOWN:
        return UNKNOWN
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
    """kernels.ops.sampling.choose.inverse_cdf of those weights that are at least `least`: the candidate at
    which their sum exceeds the target."""
    total = 0.0
    for i in range(n):
        weight = read_f64(weights + 8 * i)
        total += weight if weight >= least else 0.0
        if total > target:
            return read_i32(ids + 4 * i)
    return UNKNOWN
