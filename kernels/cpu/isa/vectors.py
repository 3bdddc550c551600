"""LLVM's vector types, and its instructions on them: those that any CPU has, in as many registers as a
vector takes there. What is specific to an instruction set is in kernels.cpu.isa.operations.

Intrinsics are written with these; kernels use the intrinsics (kernels.cpu.isa.simd and its neighbours) and
write no LLVM code. Addresses come in as integers (`Tensor.data_ptr()`): an array argument costs ten times as
much per call.
"""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import Intrinsic

LANES = 16
"""float32 values in a vector: 512 bits."""

I8, I16, I32, I64 = ir.IntType(8), ir.IntType(16), ir.IntType(32), ir.IntType(64)
F32 = ir.FloatType()
F32S = ir.VectorType(F32, LANES)
I32S = ir.VectorType(I32, LANES)
I16S = ir.VectorType(I16, LANES)
I8S = ir.VectorType(I8, LANES)
BYTES = ir.VectorType(I8, 4 * LANES)
BITS = ir.VectorType(ir.IntType(1), LANES)
_NAMES = {F32S: "v16f32", I32S: "v16i32", I16S: "v16i16"}
"""As LLVM's functions call them."""


def word(value: int) -> Any:
    """A constant of 64 bits."""
    return ir.Constant(I64, value)


def repeat(
    builder: Any, times: Any, values: Sequence[Any], body: Callable[[Any, list[Any]], Sequence[Any]]
) -> list[Any]:
    """A loop, run at least once: values = body(0, values), then body(1, values), ... Returns the last."""
    before, loop, after = builder.block, builder.append_basic_block(), builder.append_basic_block()
    builder.branch(loop)
    builder.position_at_end(loop)
    index = builder.phi(I64)
    current = [builder.phi(value.type) for value in values]
    following = list(body(index, current))
    step = builder.add(index, word(1))
    for phi, first, next_one in zip([index, *current], [word(0), *values], [step, *following], strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(next_one, builder.block)
    builder.cbranch(builder.icmp_signed("<", step, times), loop, after)
    builder.position_at_end(after)
    return following


def reread(builder: Any, address: Any) -> Any:
    """The same address, of which LLVM does not know that: it reads again what it would keep in a register."""
    return builder.asm(ir.FunctionType(I64, [I64]), "", "=r,0", [address], False)


def opaque(builder: Any, value: Any, register: str) -> Any:
    """The same value, of which LLVM does not know what it is: sums of integers stay in the order in which
    they are written. Else the products of all parts of a word are added first, which registers do not suffice
    for. register: the kind that it is in, as LLVM's assembly calls it."""
    kind = ir.FunctionType(value.type, [value.type])
    return builder.asm(kind, "", f"={register},0", [value], False)


def splat(kind: Any, value: float) -> Any:
    """A constant of this type, in all lanes if it is a vector's."""
    return ir.Constant(kind, [value] * kind.count if isinstance(kind, ir.VectorType) else value)


def zeros(count: int) -> list[Any]:
    """F32S to begin sums with."""
    return [ir.Constant(F32S, [0.0] * LANES)] * count


def call(builder: Any, name: str, result: Any, *args: Any) -> Any:
    """One of LLVM's own functions."""
    kind = ir.FunctionType(result, [arg.type for arg in args])
    function = builder.module.globals.get(name) or ir.Function(builder.module, kind, name)
    return builder.call(function, args)


def load(builder: Any, address: Any, kind: Any) -> Any:
    """A value of this type at an address, which need not be aligned beyond 2 bytes."""
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=2)


def broadcast(builder: Any, value: Any) -> Any:
    """An i32 or a float in every lane."""
    nothing = ir.Constant(ir.VectorType(value.type, LANES), ir.Undefined)
    one = builder.insert_element(nothing, value, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(I32S, [0] * LANES))


def widened(builder: Any, address: Any) -> Any:
    """16 bfloat16 values as F32S."""
    return of_bf16(builder, load(builder, address, I16S))


def of_bf16(builder: Any, values: Any) -> Any:
    """I16S of bfloat16 values as F32S."""
    bits = builder.zext(values, I32S)
    return builder.bitcast(builder.shl(bits, ir.Constant(I32S, [16] * LANES)), F32S)


def prefetch(builder: Any, address: Any) -> None:
    """Asks for the cache line of an address, which need not be one, to come into the second-level cache:
    twice as many of these can be under way as for the first level (KV blocks at random: 27 GB/s for 19)."""
    none, kind = ir.VoidType(), I8.as_pointer()
    constants = (ir.Constant(I32, value) for value in (0, 2, 1))  # to read; second-level cache; data
    call(builder, "llvm.prefetch.p0", none, builder.inttoptr(address, kind), *constants)


def first_lanes(builder: Any, count: Any) -> Any:
    """A mask of the lanes below count, an i64 of any size."""
    capped = builder.select(builder.icmp_signed("<", count, word(LANES)), count, word(LANES))
    lanes = ir.Constant(I32S, list(range(LANES)))
    return builder.icmp_signed("<", lanes, broadcast(builder, builder.trunc(capped, I32)))


def store(builder: Any, values: Any, address: Any) -> None:
    """All lanes of a vector."""
    builder.store(values, builder.inttoptr(address, values.type.as_pointer()), align=2)


def store_lanes(builder: Any, values: Any, address: Any, mask: Any) -> None:
    """The masked lanes of F32S, I32S or I16S."""
    pointer, align = builder.inttoptr(address, values.type.as_pointer()), ir.Constant(I32, 2)
    name = f"llvm.masked.store.{_NAMES[values.type]}.p0"
    call(builder, name, ir.VoidType(), values, pointer, align, mask)


def load_lanes(builder: Any, address: Any, kind: Any, mask: Any) -> Any:
    """The masked lanes of F32S, I32S or I16S, and zeros."""
    pointer, align = builder.inttoptr(address, kind.as_pointer()), ir.Constant(I32, 2)
    return call(builder, f"llvm.masked.load.{_NAMES[kind]}.p0", kind, pointer, align, mask, splat(kind, 0))


def make_reader(kind: Any, result: types.Type, c_type: Any) -> Any:
    """read(address). kind: LLVM's type of what lies there; result: what it is read as."""

    def read(address: int) -> Any:
        return c_type.from_address(address).value

    return Intrinsic((result(types.int64),), lambda builder, at: load(builder, at, kind), read)


def make_writer(value_type: types.Type, c_type: Any) -> Any:
    """write(address, value)."""

    def write(address: int, value: Any) -> None:
        c_type.from_address(address).value = value

    signature = types.void(types.int64, value_type)
    return Intrinsic((signature,), lambda builder, address, value: store(builder, value, address), write)


# What lies at an address, and what is to lie there.
read_i64: Callable[[int], int] = make_reader(I64, types.int64, ctypes.c_int64)
read_u32: Callable[[int], int] = make_reader(I32, types.uint32, ctypes.c_uint32)
read_u16: Callable[[int], int] = make_reader(I16, types.uint16, ctypes.c_uint16)
read_i32: Callable[[int], int] = make_reader(I32, types.int32, ctypes.c_int32)
read_u8: Callable[[int], int] = make_reader(I8, types.uint8, ctypes.c_uint8)
read_f32: Callable[[int], float] = make_reader(F32, types.float32, ctypes.c_float)
read_f64: Callable[[int], float] = make_reader(ir.DoubleType(), types.float64, ctypes.c_double)
write_i64: Callable[[int, int], None] = make_writer(types.int64, ctypes.c_int64)
write_u32: Callable[[int, int], None] = make_writer(types.uint32, ctypes.c_uint32)
write_i32: Callable[[int, int], None] = make_writer(types.int32, ctypes.c_int32)
write_u16: Callable[[int, int], None] = make_writer(types.uint16, ctypes.c_uint16)
write_u8: Callable[[int, int], None] = make_writer(types.uint8, ctypes.c_uint8)
write_f32: Callable[[int, float], None] = make_writer(types.float32, ctypes.c_float)
write_f64: Callable[[int, float], None] = make_writer(types.float64, ctypes.c_double)


class BFloats(ir.types.Type):
    """A vector of bfloat16 values, for instructions that take them: a type that llvmlite does not know. It
    has no literals, but values can be cast to it."""

    def __init__(self, length: int) -> None:
        self.length = length

    def _to_string(self) -> str:
        return f"<{self.length} x bfloat>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BFloats) and other.length == self.length

    def __hash__(self) -> int:
        return hash((BFloats, self.length))
