"""The order in which a product sums, and launch parameters that keep it. Does not import triton.

    y[t, n] = range[0] + range[1] + ... + range[R - 1] + bias[n]         one after the other, float32
    range[r] = sum of x[t, k] * w[n, k] for k from r * L to (r + 1) * L - 1, ascending, float32

The length L of a range follows from the weight's shape alone, of all ranks where each has some of its rows.
Where ranks may split the inputs, ranges are the leaves of a tree (kernels.ops.layers.leaves), which are added
as that says:

    y[t, n] = ((range[0] + range[1]) + (range[2] + range[3])) + ... + bias[n]

So the bits of a result depend on its row and on the weight, and not on the number of rows, nor on that of
ranks, nor on which program sums what: a program that sums one range of a few rows and leaves its sum to
another kernel, and one that sums all ranges of many rows, are two schedules of one arithmetic. Ranges are
what splitting K ("split-K") would cut, were it decided by the shape of the weight: hence virtual splits.

Within a range an instruction of the matrix units takes 16 values of k, and the next one adds to its result.
Weights are the left operand of all schedules, so that Hopper computes one row of x and many with the same
instruction (wgmma, 64 rows of weights). Float32 is summed value by value.
"""

from dataclasses import dataclass

import torch

from kernels.triton.capabilities import CAPABILITIES, DEFAULT, Capability
from kernels.triton.requirements import next_power_of_2

FEATURES = 64
"""Rows of the weight that the smallest program takes: those of one wgmma."""
WANTED_PROGRAMS = 256
"""Of a product of few rows: two for each processor of an H100. Ranges are added until there are as many."""
LEAST_RANGE = 512
"""Values of K: a program that sums fewer does not get its loads under way."""
MOST_RANGES = 16
UNIT = 64
"""Ranges are a multiple of so many values: those of one iteration."""
LEAST_LEAF = 2 * UNIT
"""Values of K that a program goes through for a leaf, zeros included: of a product in one iteration and the
addition of its result Triton makes one product, which adds in another order."""
MANY = 256
"""Tokens from which on launch parameters stay the same."""


@dataclass(frozen=True)
class LinearSizes:
    """Launch parameters of one program. Results do not depend on them."""

    features: int  # rows of the weight
    tokens: int
    depth: int  # values of K at a time
    warps: int
    stages: int
    splits: bool  # each program sums one range


@dataclass(frozen=True)
class SumOrder:
    """In which order a CUDA device adds the products with a matrix, of which a rank may have a part."""

    features: int
    """Rows of the whole matrix."""
    leaves: int = 0
    """Of the inputs of this rank, a power of two; 0: ranks do not split the inputs."""


def range_length(features: int, depth: int) -> int:
    """Returns the length of a range of a weight [features, depth]; the last range may be shorter."""
    programs, ranges = -(-features // FEATURES), 1
    while programs * ranges < WANTED_PROGRAMS and depth >= 2 * ranges * LEAST_RANGE and ranges < MOST_RANGES:
        ranges *= 2
    return -(-depth // (ranges * UNIT)) * UNIT


def ranges_of(features: int, depth: int, order: SumOrder | None) -> tuple[int, int]:
    """Returns the length of a range, a multiple of UNIT, and how far the next one begins behind it: leaves
    may be shorter. features, depth: the shape of the weight on this rank."""
    if order is not None and order.leaves:
        step, rest = divmod(depth, order.leaves)
        assert not rest, (depth, order)
        return max(LEAST_LEAF, -(-step // UNIT) * UNIT), step
    length = range_length(features if order is None else order.features, depth)
    return length, length


def choose_sizes(
    tokens: int,
    features: int,
    ranges: int,
    dtype: torch.dtype,
    processors: int,
    capability: Capability = CAPABILITIES[DEFAULT],
    leaves: int = 0,
) -> LinearSizes:
    """Returns the launch parameters of a product of so many tokens. They follow from the next power of two of
    `tokens`, and from MANY on they are all the same, so that a warm-up can meet all of them.

    A product of few tokens splits where its programs would leave processors without work. 64 values of K are
    128 bytes, the width of a swizzle; four stages keep 40 KB in flight. Many tokens take 128 x 128, two
    accumulators of 64 registers each, where matrix instructions read their operands from shared memory; else
    half as many tokens, at half as many values of K: more would spill. So would 128 with a tree of eight
    leaves, whose sums wait in two accumulators more. Float32 has no matrix unit that does not round.
    processors: of the device; 0: of Triton's interpreter, which takes longest for the number of operations.
    leaves: of SumOrder."""
    most = min(MANY, next_power_of_2(tokens))
    if not processors:
        return LinearSizes(next_power_of_2(max(16, features)), max(16, most), UNIT, 4, 1, ranges > 1)
    if dtype == torch.float32:
        sizes = LinearSizes(FEATURES, 16 if most <= 16 else 32, 16, 4, 2, False)
    elif most <= 64:
        sizes = LinearSizes(FEATURES, max(16, most), UNIT, 4, 4, False)
    elif capability.number in (90, 100):
        sizes = LinearSizes(128, 64 if leaves > 4 else 128, UNIT, 8, 3, False)
    else:
        sizes = LinearSizes(128, 64, UNIT // 2, 8, 4, False)
    programs = -(-most // sizes.tokens) * -(-features // sizes.features)
    splits = ranges > 1 and most < MANY and programs < 2 * processors
    return LinearSizes(sizes.features, sizes.tokens, sizes.depth, sizes.warps, sizes.stages, splits)
