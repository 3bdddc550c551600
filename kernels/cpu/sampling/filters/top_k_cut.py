"""Where a ranking is cut: by descending score, ascending place among equals, the shortest beginning whose
weights sum to at least a target. With weights of 1 and a target of k it is the k best.

Nothing is sorted: a score is picked, and the weights of what is above it and of its equals are summed; then
the answer is among the higher ones, the equals or the lower ones, and only those stay. About 2 n scores are
looked at in all.

The sum of what is above is not taken in the order of the ranking, so that it may be off in its last bits.
Where these could matter, the answer is that it is not known: the caller sorts, then.
"""

from kernels.cpu.isa.vectors import read_f32, read_f64, read_i32, write_f32, write_f64, write_i32
from kernels.cpu.sampling.vector_loops import masses

UNKNOWN = -1
"""Instead of a place."""


def cut_bytes(n: int) -> int:
    """Of scratch: scores, places and weights of those that are left."""
    return 16 * (n + 8)


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
    """The place of the last that is kept; UNKNOWN where it is not certain, and where all are not enough.

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
