"""The order in which a product sums whose inputs tensor parallelism splits: a tree of leaves.

    y[t, n] = ((r[0] + r[1]) + (r[2] + r[3])) + ... + b[n]       a complete binary tree, float32, rounded once
    r[i] = sum of x[t, k] * w[n, k] for k of leaf i               float32, as a product of its own

The inputs of a leaf follow each other, and all leaves have as many. Their number L is a power of two, and
follows from the shape of the whole weight and from what may be split. So a rank of a group of N, where N
divides L, sums L / N leaves and their subtree, and the levels above add what the ranks have: the bits of a
result are the same for any N. A product with one leaf is an ordinary one. Sums of integers are exact in any
order, and need no leaves (kernels.cpu.matmul.int8).

On a CUDA device a leaf is one range of kernels.triton.matmul.ranges; products whose inputs ranks do not split
are chains of ranges there, whose length follows from the shape of the whole weight.

Needs neither torch nor numpy.
"""

MOST = 8
LEAST_INPUTS = 1024
"""Of a leaf, where there are more than two: adding up shorter ones costs more than 3 % of a product
(docs/lab-book.md)."""
MULTIPLE = 32
"""Leaves have a multiple of so many inputs: they end where words of packed weights do."""
UNDIVIDED = 1 << 62
"""The multiple where a product is one leaf: its sums are exact in any order, or its inputs are permuted."""


def count_leaves(inputs: int, units: int, multiple: int = 1) -> int:
    """Returns L, the largest power of two up to MOST that divides the units, whose leaves have LEAST_INPUTS
    or more inputs; else two of any length, so that two ranks can share small models. inputs: K of the whole
    weight; units: the number of its parts that are never split, such as heads; multiple: consecutive inputs
    that are in one leaf, such as those of a quantized group."""
    leaves = MOST
    while leaves > 1 and not _fits(inputs, units, multiple, leaves):
        leaves //= 2
    return leaves


def _fits(inputs: int, units: int, multiple: int, leaves: int) -> bool:
    size, rest = divmod(inputs, leaves)
    is_long = leaves == 2 or size >= LEAST_INPUTS
    return is_long and not (rest or units % leaves or size % MULTIPLE or size % multiple)
