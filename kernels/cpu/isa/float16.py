"""Values of float16 as the bits of the float32 that they are."""

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.compiler.vectors import i32x8, i32x16
from kernels.cpu.isa.simd import memory
from kernels.cpu.isa.vectors import F32, F32S, I32, I32S, LANES, load

_HALF = ir.HalfType()
_HALVES, _EIGHT_HALVES = ir.VectorType(_HALF, LANES), ir.VectorType(_HALF, 8)


def _widened(builder: Any, address: Any, kind: Any, wide: Any, bits: Any) -> Any:
    return builder.bitcast(builder.fpext(load(builder, address, kind), wide), bits)


@lowered_by(lambda b, address: _widened(b, address, _HALVES, F32S, I32S), types.i32x16(types.int64))
def load_halves(address: int) -> i32x16:
    """16 of them."""
    return i32x16(memory(address, np.float16, LANES).astype(np.float32).view(np.int32))


@lowered_by(
    lambda b, address: _widened(b, address, _EIGHT_HALVES, types.f32x8.llvm, types.i32x8.llvm),
    types.i32x8(types.int64),
)
def load_halves_x8(address: int) -> i32x8:
    """8 of them."""
    return i32x8(memory(address, np.float16, 8).astype(np.float32).view(np.int32))


@lowered_by(lambda b, address: _widened(b, address, _HALF, F32, I32), types.uint32(types.int64))
def read_half(address: int) -> int:
    """One of them."""
    return int(memory(address, np.float16, 1).astype(np.float32).view(np.uint32)[0])
