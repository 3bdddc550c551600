"""Operations on vectors of 8 float64, and on the 8 float32 that become them.

Each function is the reference of an intrinsic, as those of kernels.cpu.isa.simd, which has those that take
vectors of any type.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.compiler.vectors import f32x8, f64x8, i64x8
from kernels.cpu.isa import vectors
from kernels.cpu.isa.simd import memory
from kernels.cpu.isa.vectors import I32

WIDE = 8
"""float64 values in a vector: 512 bits."""
_F32S, _F64S, _I64S = types.f32x8.llvm, types.f64x8.llvm, types.i64x8.llvm
_I32S = ir.VectorType(I32, WIDE)


@lowered_by(lambda b, address: vectors.load(b, address, _F32S), types.f32x8(types.int64))
def load_f32x8(address: int) -> f32x8:
    """8 float32."""
    return f32x8(memory(address, np.float32, WIDE).copy())


@lowered_by(lambda b, address: vectors.load(b, address, _F64S), types.f64x8(types.int64))
def load_f64x8(address: int) -> f64x8:
    """8 float64."""
    return f64x8(memory(address, np.float64, WIDE).copy())


@lowered_by(lambda b, address, x: vectors.store(b, x, address), types.void(types.int64, types.f32x8))
def store_f32x8(address: int, x: f32x8) -> None:
    """Writes 8 float32."""
    memory(address, np.float32, WIDE)[:] = x.lanes


@lowered_by(lambda b, address, x: vectors.store(b, x, address), types.void(types.int64, types.f64x8))
def store_f64x8(address: int, x: f64x8) -> None:
    """Writes 8 float64."""
    memory(address, np.float64, WIDE)[:] = x.lanes


@lowered_by(lambda b, x: b.fpext(x, _F64S), types.f64x8(types.f32x8))
def to_f64(x: f32x8) -> f64x8:
    """The same numbers."""
    return f64x8(x.lanes)


def _truncated(builder: Any, x: Any) -> Any:
    return builder.sext(builder.fptosi(x, _I32S), _I64S)


@lowered_by(_truncated, types.i64x8(types.f64x8))
def truncated_i64(x: f64x8) -> i64x8:
    """Whole numbers that an int32 holds as int64, others without their fraction."""
    return i64x8(x.lanes.astype(np.int32))


@lowered_by(lambda b, x: b.bitcast(x, _I64S), types.i64x8(types.f64x8))
def bits_of_f64(x: f64x8) -> i64x8:
    """The bits of each float64."""
    return i64x8(x.lanes.view(np.int64))


@lowered_by(lambda b, bits: b.bitcast(bits, _F64S), types.f64x8(types.i64x8))
def as_f64(bits: i64x8) -> f64x8:
    """The float64 that have these bits."""
    return f64x8(bits.lanes.view(np.float64))
