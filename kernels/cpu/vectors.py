"""LLVM's vector types, and the instructions on them that Numba has no name for.

A kernel's innermost loop is an `@intrinsic`: it writes LLVM code itself, because no compiler finds
these instructions on its own. Addresses come in as integers (`Tensor.data_ptr()`): an array argument
costs ten times as much per call. All vectors fill one register of 512 bits.
"""

from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16
"""float32 values in a register."""

I16, I32, I64 = ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32 = ir.FloatType()
F32S = ir.VectorType(F32, LANES)
I32S = ir.VectorType(I32, LANES)
I16S = ir.VectorType(I16, LANES)
BITS = ir.VectorType(ir.IntType(1), LANES)


class BFloats(ir.types.Type):
    """A vector of bfloat, a type that llvmlite does not know: no literals, but it can be cast to."""

    def __init__(self, length: int) -> None:
        self.length = length

    def _to_string(self) -> str:
        return f"<{self.length} x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloats) and other.length == self.length

    def __hash__(self) -> int:
        return hash((BFloats, self.length))


BF16S = BFloats(LANES)
BF16_PAIRS = BFloats(2 * LANES)


def word(value: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(I64, value)


def load(builder: Any, address: Any, kind: Any) -> Any:
    """A value of this type at an address, which need not be aligned beyond 2 bytes."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def broadcast(builder: Any, value: Any) -> Any:
    """An i32 in every lane."""
    one = builder.insert_element(ir.Constant(I32S, ir.Undefined), value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, ir.Constant(I32S, ir.Undefined), ir.Constant(I32S, [0] * LANES))


def dot_pairs(builder: Any, sums: Any, left: Any, right: Any) -> Any:
    """sums[i] + left[2 i] * right[2 i] + left[2 i + 1] * right[2 i + 1]: F32S and two BF16_PAIRS."""
    kind = ir.FunctionType(F32S, [F32S, BF16_PAIRS, BF16_PAIRS])
    dot = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.avx512bf16.dpbf16ps.512")
    return builder.call(dot, [sums, left, right])


def first_lanes(builder: Any, count: Any) -> Any:
    """A mask of the lanes below count, an i64 of any size."""
    capped = builder.select(builder.icmp_signed("<", count, word(LANES)), count, word(LANES))
    lanes = ir.Constant(I32S, list(range(LANES)))
    return builder.icmp_signed("<", lanes, broadcast(builder, builder.trunc(capped, I32)))


def store(builder: Any, values: Any, address: Any, mask: Any) -> None:
    """The masked lanes of F32S, as float32."""
    _masked_store(builder, values, address, mask, F32S, "v16f32")


def store_rounded(builder: Any, values: Any, address: Any, mask: Any) -> None:
    """The masked lanes of F32S, as bfloat16, rounded to nearest, ties to even."""
    kind = ir.FunctionType(BF16S, [F32S])
    name = "llvm.x86.avx512bf16.cvtneps2bf16.512"
    rounding = cgutils.get_or_insert_function(builder.module, kind, name)
    rounded = builder.bitcast(builder.call(rounding, [values]), I16S)
    _masked_store(builder, rounded, address, mask, I16S, "v16i16")


def _masked_store(builder: Any, values: Any, address: Any, mask: Any, kind: Any, name: str) -> None:
    pointer = builder.inttoptr(address, kind.as_pointer())
    signature = ir.FunctionType(ir.VoidType(), [kind, kind.as_pointer(), I32, BITS])
    masked = cgutils.get_or_insert_function(builder.module, signature, f"llvm.masked.store.{name}.p0")
    builder.call(masked, [values, pointer, ir.Constant(I32, 2), mask])
