"""The values of activations and norm weights: bfloat16 or float32.

A kernel on rows is written once over these operations, and compiled for both (by_dtype). Values in memory
are widened to float32 when they are loaded and rounded when they are stored, which does nothing to a float32.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, NamedTuple

from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.compiler.records import Operation, OwnRecord
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.isa.exp import BIAS, EXPONENT_UNIT, precise_exp, rough_exponent, rough_fraction
from kernels.cpu.isa.simd import (
    fma,
    load_bf16,
    load_f32,
    load_first_bf16,
    load_first_f32,
    reciprocal,
    select,
    store_bf16,
    store_f32,
    store_first_bf16,
    store_first_f32,
)

if TYPE_CHECKING:  # a process that only compiles needs no torch
    import torch

_UNIT, _ONE, _INFINITE = (value * EXPONENT_UNIT for value in (-math.log2(math.e), BIAS, 255))
_MOST = 120.0
"""e ** _MOST is infinite in float32."""


@dataclass(frozen=True, eq=False)
class Element:
    """Operations on 16 values of one dtype."""

    size: int
    """Bytes of a value."""
    load: Callable[[int], f32x16]
    """(address)."""
    store: Callable[[int, f32x16], None]
    """(address, values)."""
    load_first: Callable[[int, int], f32x16]
    """(address, count): the first ones, and zeros."""
    store_first: Callable[[int, f32x16, int], None]
    """(address, values, count): the first ones."""
    times_sigmoid: Callable[[f32x16, f32x16], f32x16]
    """(x, y): x * sigmoid(y) as exact as the dtype needs it. NaN of NaN and, as the formula has it, of
    -inf."""


def _rough_times_sigmoid(x: f32x16, y: f32x16) -> f32x16:
    """To 1.7e-4 of it."""
    infinite = f32x16(_INFINITE)
    bits = fma(y, f32x16(_UNIT), f32x16(_ONE))
    bits = select(bits < infinite, bits, infinite)
    divisor = fma(rough_fraction(bits), rough_exponent(bits), f32x16(1.0))
    return x * reciprocal(divisor)


def _precise_times_sigmoid(x: f32x16, y: f32x16) -> f32x16:
    """To some roundings of float32."""
    exponent, most = y * f32x16(-1.0), f32x16(_MOST)
    return x / (precise_exp(select(exponent < most, exponent, most)) + f32x16(1.0))


BFLOAT16 = Element(2, load_bf16, store_bf16, load_first_bf16, store_first_bf16, _rough_times_sigmoid)
FLOAT32 = Element(4, load_f32, store_f32, load_first_f32, store_first_f32, _precise_times_sigmoid)


class Operations(NamedTuple, Generic[OwnRecord]):
    """An operation on activations, for each of their dtypes."""

    bfloat16: Operation[OwnRecord]
    float32: Operation[OwnRecord]

    def of(self, dtype: "torch.dtype") -> Operation[OwnRecord]:
        """Returns that for bfloat16 or float32."""
        return self.float32 if dtype.itemsize == FLOAT32.size else self.bfloat16


def by_dtype(kernel: Callable[..., None], *statics: Any, suffix: str = "") -> Operations[Any]:
    """Decorates the operation (element, *statics, record, first, count, thread), whose element is Static; see
    kernels.cpu.compiler.cache.operation. suffix: of the names, where one kernel is several operations."""
    return Operations(
        operation_for(kernel, BFLOAT16, *statics, suffix=f"{suffix}_bfloat16"),
        operation_for(kernel, FLOAT32, *statics, suffix=f"{suffix}_float32"),
    )
