"""Words of 8 and 16 bits in memory, which are wider in vectors; those of float16 as bits of the float32 that
they are.

Each function is the reference of an intrinsic, as those of kernels.cpu.isa.simd.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.compiler.vectors import i32x8, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.e4m3 import bfloat16_of
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import memory
from kernels.cpu.isa.vectors import F32, F32S, I8, I8S, I16S, I32, I32S, LANES, load

_PAIRS = ir.VectorType(I8, 2 * LANES)
_LOAD, _STORE = types.i32x16(types.int64), types.void(types.int64, types.i32x16)
_BFLOAT16 = np.array([bfloat16_of(code) for code in range(256)], np.uint16)
"""Of each number of e4m3."""


@lowered_by(lambda b, address: b.zext(vectors.load(b, address, I16S), I32S), _LOAD)
def load_u16(address: int) -> i32x16:
    """16 numbers of 16 bits, without sign."""
    return i32x16(memory(address, np.uint16, LANES).copy())


@lowered_by(lambda b, address, x: vectors.store(b, b.trunc(x, I16S), address), _STORE)
def store_i16(address: int, x: i32x16) -> None:
    """Writes the lower halves of 16 int32."""
    memory(address, np.int16, LANES)[:] = x.lanes.astype(np.int16)


def _e4m3_pairs(builder: Any, address: Any) -> Any:
    return builder.bitcast(OPERATIONS.widen_e4m3(builder, vectors.load(builder, address, _PAIRS)), I32S)


@lowered_by(_e4m3_pairs, _LOAD)
def load_e4m3_pairs(address: int) -> i32x16:
    """16 pairs of e4m3, as pairs of bfloat16."""
    return i32x16(_BFLOAT16[memory(address, np.uint8, 2 * LANES)].view(np.int32))


def _e4m3_floats(builder: Any, address: Any) -> Any:
    halves = OPERATIONS.widen_e4m3(builder, vectors.load(builder, address, I8S))
    return builder.bitcast(vectors.of_bf16(builder, halves), I32S)


@lowered_by(_e4m3_floats, _LOAD)
def load_e4m3_floats(address: int) -> i32x16:
    """16 numbers of e4m3, as the bits of float32."""
    bits = _BFLOAT16[memory(address, np.uint8, LANES)].astype(np.uint32) << 16
    return i32x16(bits.view(np.int32))


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
