"""Types of values that intrinsics of kernels take and give; see kernels.cpu.compiler.language."""

from dataclasses import dataclass
from typing import Any

from llvmlite import ir


@dataclass(frozen=True)
class Signature:
    """Of an intrinsic, or of a function of the C library."""

    result: "Type"
    arguments: tuple["Type", ...]


@dataclass(frozen=True)
class Type:
    """llvm: LLVM's type. signed: how an integer is widened to 64 bits."""

    llvm: Any
    signed: bool = True

    def __call__(self, *arguments: "Type") -> Signature:
        """int64(float32): from float32 to int64."""
        return Signature(self, arguments)


void = Type(ir.VoidType())
boolean = Type(ir.IntType(1))
int64, int32 = Type(ir.IntType(64)), Type(ir.IntType(32))
uint32, uint16, uint8 = (Type(ir.IntType(bits), signed=False) for bits in (32, 16, 8))
f32x16, i32x16 = Type(ir.VectorType(ir.FloatType(), 16)), Type(ir.VectorType(ir.IntType(32), 16))
f32x8, f64x8 = Type(ir.VectorType(ir.FloatType(), 8)), Type(ir.VectorType(ir.DoubleType(), 8))
i32x8, i64x8 = Type(ir.VectorType(ir.IntType(32), 8)), Type(ir.VectorType(ir.IntType(64), 8))
i16x32, i8x64 = Type(ir.VectorType(ir.IntType(16), 32)), Type(ir.VectorType(ir.IntType(8), 64))
mask32 = Type(ir.VectorType(ir.IntType(1), 32))
mask16, mask8 = Type(ir.VectorType(ir.IntType(1), 16)), Type(ir.VectorType(ir.IntType(1), 8))
float64, float32 = Type(ir.DoubleType()), Type(ir.FloatType())
