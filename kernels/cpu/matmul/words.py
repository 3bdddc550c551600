"""What the 32-bit words of a product are: a float32, two bfloat16 or four 8-bit integers. Words of weights
may be float16, which become float32 when they are loaded.

A tile of kernels.cpu.matmul.gemm is written once over these operations. Sums of floats are float32, those of
integers int32. Tiles read inputs as the parts of each word (kernels.cpu.isa.dot), side by side; where an
instruction multiplies whole words, there is nothing to split.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16, i32x8, i32x16
from kernels.cpu.isa.lanes import interleaved
from kernels.cpu.isa.narrow_words import load_halves, load_halves_x8
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import (
    PAIR_PARTS,
    QUAD_PARTS,
    add_floats,
    add_pairs,
    add_quads,
    load_f32,
    load_first_i32,
    load_i32,
    load_i32x8,
    pair_inputs,
    pair_weights,
    quad_inputs,
    quad_weights,
    store_first_bf16,
    store_first_f32,
    store_i32,
    to_f32,
    whole_words,
)
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.runtime.work_split import ROWS


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
    inputs: Callable[[i32x16, int], i32x16]
    """(words, part): a part of inputs."""
    load: Callable[[int], i32x16] = load_i32
    """(address): 16 words of weights."""
    size: int = 4
    """Bytes of a word of weights, in memory."""
    has_eights: bool = False
    """Whether weights() and add() take vectors of 8 words, too."""
    load_eight: Callable[[int], i32x8] = load_i32x8
    """(address): 8 words of weights."""

    @property
    def params_bytes(self) -> int:
        """Bytes of the params of 16 columns: biases, of integers scales and corrections too."""
        return 192 if self.integers else 64


FLOATS = Words(1, False, whole_words, add_floats, whole_words, has_eights=True)
HALVES = Words(1, False, whole_words, add_floats, whole_words, load_halves, 2, True, load_halves_x8)
PAIRS = Words(PAIR_PARTS, False, pair_weights, add_pairs, pair_inputs, has_eights=PAIR_PARTS > 1)
QUADS = Words(QUAD_PARTS, True, quad_weights, add_quads, quad_inputs)
PAIR_BYTES = 4 * PAIR_PARTS


def _split(kind: Static[Words], x: int, to: int, words: int) -> None:
    """Writes the parts of so many words, and of nothing up to a multiple of 16."""
    for i in range((words + LANES - 1) // LANES):
        loaded, at = load_first_i32(x + 64 * i, words - LANES * i), to + 64 * kind.parts * i
        if kind.parts == 1:
            store_i32(at, kind.inputs(loaded, 0))
        else:
            first, second = kind.inputs(loaded, 0), kind.inputs(loaded, 1)
            store_i32(at, interleaved(first, second, 0))
            store_i32(at + 64, interleaved(first, second, 1))


def split_inputs(kind: Static[Words], x: int, rows: int, words: int, to: int) -> int:
    """Writes the parts of rows side by side. Returns `to`."""
    for row in range(rows):
        _split(kind, x + 4 * words * row, to + 4 * kind.parts * words * row, words)
    return to


def split_bytes(words: int) -> int:
    """What a thread needs for the rows that it multiplies at once; 0: nothing is split."""
    parts = max(OPERATIONS.pairs.parts, OPERATIONS.quads.parts)
    return 4 * parts * (words * ROWS + LANES) if parts > 1 else 0


def dequantized(total: i32x16, params: int, scale: float) -> f32x16:
    """(sum - correction) * scale of the column * scale of the row."""
    return to_f32(total - load_i32(params + 128)) * load_f32(params + 64) * scale


def store_columns(out: int, out_bytes: int, x: f32x16, columns: int) -> None:
    """Writes the first of 16 columns, as float32 if out_bytes is 4, else as bfloat16."""
    if out_bytes == 4:
        store_first_f32(out, x, columns)
    else:
        store_first_bf16(out, x, columns)
