"""What the 32-bit words of a product are: a float32, two bfloat16 or four 8-bit integers. Words of weights
may be float16, which become float32 when they are loaded.

A tile of kernels.cpu.matmul.gemm is written once over these operations. Sums of floats are float32, those of
integers int32.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.cpu.compiler.vectors import i32x8, i32x16
from kernels.cpu.isa.float16 import load_halves, load_halves_x8
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    QUAD_PARTS,
    add_floats,
    add_pairs,
    add_quads,
    load_i32,
    load_i32x8,
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
    weights: Callable[[Any, int], Any]
    """(words, part): a part of weights."""
    add: Callable[[Any, Any, Any], Any]
    """(sums, weights, x): the sums, and the products of a part of weights and of inputs."""
    split: Callable[[int, int, int, int], int]
    """(x, rows, words, to): writes the parts of inputs side by side, where there are several."""
    load: Callable[[int], i32x16] = load_i32
    """(address): 16 words of weights."""
    size: int = 4
    """Bytes of a word of weights, in memory."""
    has_eights: bool = False
    """Whether weights() and add() take vectors of 8 words, too."""
    load_eight: Callable[[int], i32x8] = load_i32x8
    """(address): 8 words of weights."""


FLOATS = Words(1, False, whole_words, add_floats, as_they_are, has_eights=True)
HALVES = Words(1, False, whole_words, add_floats, as_they_are, load_halves, 2, True, load_halves_x8)
PAIRS = Words(PAIR_PARTS, False, pair_weights, add_pairs, split_pairs, has_eights=PAIR_PARTS > 1)
QUADS = Words(QUAD_PARTS, True, quad_weights, add_quads, split_integers)
