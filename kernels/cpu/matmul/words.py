"""What the 32-bit words of a product are: a float32, two bfloat16 or four 8-bit integers.

A tile of kernels.cpu.matmul.gemm is written once over these operations. Sums of floats are float32, those of
integers int32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.cpu.compiler.vectors import i32x16
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    QUAD_PARTS,
    add_floats,
    add_pairs,
    add_quads,
    pair_weights,
    quad_weights,
    whole_words,
)
from kernels.cpu.matmul.split_inputs import as_they_are, split_integers, split_pairs


@dataclass(frozen=True, eq=False)
class Words:
    """Operations on the words of weights and inputs, which may be multiplied in several parts
    (kernels.cpu.isa.dot)."""

    parts: int
    integers: bool
    weights: Callable[[i32x16, int], i32x16]
    """(words, part): a part of weights."""
    add: Callable[[Any, i32x16, i32x16], Any]
    """(sums, weights, x): the sums, and the products of a part of weights and of inputs."""
    split: Callable[[int, int, int, int], int]
    """(x, rows, words, to): writes the parts of inputs side by side, where there are several."""


FLOATS = Words(1, False, whole_words, add_floats, as_they_are)
PAIRS = Words(PAIR_PARTS, False, pair_weights, add_pairs, split_pairs)
QUADS = Words(QUAD_PARTS, True, quad_weights, add_quads, split_integers)
