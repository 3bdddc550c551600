"""Operations on vectors of the kernels' language: what its operators do not say.

Each function is the reference of an intrinsic (kernels.cpu.compiler.language.Intrinsic); what is specific to
an instruction set is written by kernels.cpu.isa.selected.OPERATIONS. Addresses need no alignment beyond 2
bytes.
"""

import ctypes
import math
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import lowered_by
from kernels.cpu.compiler.vectors import Mask, Vector, f32x16, f64x8, i32x8, i32x16
from kernels.cpu.isa import vectors
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import F32, F32S, I32S, LANES, call, first_lanes, splat, word

PAIR_PARTS, QUAD_PARTS = OPERATIONS.pairs.parts, OPERATIONS.quads.parts
"""Parts of a word of two bfloat16, or of four bytes, that are multiplied one after the other
(kernels.cpu.isa.dot)."""

AnyVector = TypeVar("AnyVector", bound=Vector)
AnyWords = TypeVar("AnyWords", i32x8, i32x16)
_WORDS = types.i32x8, types.i32x16


def memory(address: int, dtype: Any, count: int) -> Any:
    """The numbers at an address, as a numpy array."""
    size = count * np.dtype(dtype).itemsize
    return np.frombuffer((ctypes.c_char * size).from_address(address), dtype)


@lowered_by(lambda b, address: vectors.load(b, address, F32S), types.f32x16(types.int64))
def load_f32(address: int) -> f32x16:
    """16 float32."""
    return f32x16(memory(address, np.float32, LANES).copy())


@lowered_by(lambda b, address: vectors.load(b, address, I32S), types.i32x16(types.int64))
def load_i32(address: int) -> i32x16:
    """16 words of 32 bits."""
    return i32x16(memory(address, np.int32, LANES).copy())


@lowered_by(lambda b, address: vectors.load(b, address, types.i32x8.llvm), types.i32x8(types.int64))
def load_i32x8(address: int) -> i32x8:
    """8 words of 32 bits."""
    return i32x8(memory(address, np.int32, 8).copy())


@lowered_by(vectors.widened, types.f32x16(types.int64))
def load_bf16(address: int) -> f32x16:
    """16 bfloat16, as float32."""
    bits = memory(address, np.uint16, LANES).astype(np.uint32) << 16
    return f32x16(bits.view(np.float32))


def load_first_lanes(builder: Any, address: Any, count: Any, kind: Any) -> Any:
    """The first lanes of a vector of F32S, I32S or I16S, and zeros."""
    mask, whole = first_lanes(builder, count), builder.icmp_signed(">=", count, word(LANES))
    return OPERATIONS.load_first(builder, address, kind, mask, whole)


@lowered_by(
    lambda b, address, n: load_first_lanes(b, address, n, F32S), types.f32x16(types.int64, types.int64)
)
def load_first_f32(address: int, count: int) -> f32x16:
    """The first float32 of 16, as many as `count`, or all where there are more, and zeros."""
    count, lanes = min(count, LANES), np.zeros(LANES, np.float32)
    lanes[:count] = memory(address, np.float32, count)
    return f32x16(lanes)


@lowered_by(
    lambda b, address, n: load_first_lanes(b, address, n, I32S), types.i32x16(types.int64, types.int64)
)
def load_first_i32(address: int, count: int) -> i32x16:
    """The first words of 16, as many as `count`, or all where there are more, and zeros."""
    count, lanes = min(count, LANES), np.zeros(LANES, np.int32)
    lanes[:count] = memory(address, np.int32, count)
    return i32x16(lanes)


@lowered_by(
    lambda b, x, n: b.select(first_lanes(b, n), x, splat(F32S, 0.0)), types.f32x16(types.f32x16, types.int64)
)
def keep_first(x: f32x16, count: int) -> f32x16:
    """The first lanes, as many as `count`, and zeros."""
    return f32x16(np.where(np.arange(LANES) < count, x.lanes, 0))


@lowered_by(
    lambda b, address, n: vectors.of_bf16(b, load_first_lanes(b, address, n, vectors.I16S)),
    types.f32x16(types.int64, types.int64),
)
def load_first_bf16(address: int, count: int) -> f32x16:
    """The first bfloat16 of 16, as many as `count`, or all where there are more, as float32, and zeros."""
    count, lanes = min(count, LANES), np.zeros(LANES, np.uint32)
    lanes[:count] = memory(address, np.uint16, count).astype(np.uint32) << 16
    return f32x16(lanes.view(np.float32))


@lowered_by(lambda b, address, x: vectors.store(b, x, address), types.void(types.int64, types.i32x16))
def store_i32(address: int, x: i32x16) -> None:
    """Writes 16 words of 32 bits."""
    memory(address, np.int32, LANES)[:] = x.lanes


@lowered_by(lambda b, address, x: vectors.store(b, x, address), types.void(types.int64, types.f32x16))
def store_f32(address: int, x: f32x16) -> None:
    """Writes 16 float32."""
    memory(address, np.float32, LANES)[:] = x.lanes


def _store_bf16(builder: Any, address: Any, x: Any) -> None:
    vectors.store(builder, OPERATIONS.round_to_bfloat16(builder, x), address)


@lowered_by(_store_bf16, types.void(types.int64, types.f32x16))
def store_bf16(address: int, x: f32x16) -> None:
    """Writes 16 bfloat16, rounded to the nearest, ties to even."""
    memory(address, np.uint16, LANES)[:] = bfloat16_bits(x)


def _one_bf16(builder: Any, value: Any) -> Any:
    bits = OPERATIONS.round_to_bfloat16(builder, vectors.broadcast(builder, value))
    return builder.extract_element(bits, ir.Constant(vectors.I32, 0))


@lowered_by(_one_bf16, types.uint16(types.float32))
def bf16_of(value: float) -> int:
    """The bits of the bfloat16 nearest to a float32, ties to even."""
    return int(bfloat16_bits(f32x16(value))[0])


def bfloat16_bits(x: f32x16) -> Any:
    """[16] uint16. Some instruction sets make 0 of denormal numbers."""
    bits = x.lanes.view(np.uint32)
    rounded = (bits.astype(np.uint64) + 0x7FFF + (bits >> 16 & 1)) >> 16
    return np.where(np.isnan(x.lanes), bits >> 16 | 0x40, rounded).astype(np.uint16)


def _named(name: str, builder: Any, *values: Any) -> Any:
    """One of LLVM's functions from vectors to one of the same type."""
    kind = values[0].type
    return call(builder, f"llvm.{name}.{_NAMES[kind]}", kind, *values)


_NAMES = {F32S: "v16f32", types.f32x8.llvm: "v8f32", types.f64x8.llvm: "v8f64"}
_FLOATS = types.f32x16, types.f32x8, types.f64x8


@lowered_by(lambda b, x, y, z: _named("fma", b, x, y, z), *(kind(kind, kind, kind) for kind in _FLOATS))
def fma(x: AnyVector, y: AnyVector, z: AnyVector) -> AnyVector:
    """x * y + z of floats, rounded once."""
    return type(x)(_fma_of_f64(x, y, z) if x.dtype is np.float64 else _fma_of_f32(x, y, z))


def _fma_of_f64(x: Vector, y: Vector, z: Vector) -> list[float]:
    """In fractions, where all numbers are finite."""
    lanes = zip(*(each.lanes.tolist() for each in (x, y, z)), strict=True)
    return [_fused(*numbers) if all(map(math.isfinite, numbers)) else _unfused(*numbers) for numbers in lanes]


def _fused(x: float, y: float, z: float) -> float:
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return _unfused(x, y, z)  # a zero with its sign
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _unfused(x: float, y: float, z: float) -> float:
    return x * y + z


def _fma_of_f32(x: Vector, y: Vector, z: Vector) -> Any:
    with np.errstate(all="ignore"):
        product = x.lanes.astype(np.float64) * y.lanes  # exact
        total = product + z.lanes
        lost = total - product
        error = (product - (total - lost)) + (z.lanes - lost)
        # Rounded to odd: then rounding to float32 is that of the exact sum.
        even = (total.view(np.int64) & 1 == 0) & (error != 0) & np.isfinite(error)
        toward = np.where(error > 0, np.inf, -np.inf)
        return np.where(even, np.nextafter(total, toward), total)


_SELECT = [
    types.f32x16(types.mask16, types.f32x16, types.f32x16),
    types.i32x16(types.mask16, types.i32x16, types.i32x16),
    types.i16x32(types.mask32, types.i16x32, types.i16x32),
    types.f32x8(types.mask8, types.f32x8, types.f32x8),
    types.f64x8(types.mask8, types.f64x8, types.f64x8),
]


@lowered_by(lambda b, mask, x, y: b.select(mask, x, y), *_SELECT)
def select(mask: Mask, x: AnyVector, y: AnyVector) -> AnyVector:
    """x in the lanes of the mask, y in the others."""
    return type(x)(np.where(mask.lanes, x.lanes, y.lanes))


@lowered_by(lambda b, x: _named("rint", b, x), *(kind(kind) for kind in _FLOATS))
def rint(x: AnyVector) -> AnyVector:
    """The nearest whole number of each float, ties to even."""
    return type(x)(np.rint(x.lanes))


def _sum_in_order(builder: Any, x: Any) -> Any:
    one = x.type.element
    return call(builder, f"llvm.vector.reduce.fadd.{_NAMES[x.type]}", one, splat(one, 0.0), x)


@lowered_by(_sum_in_order, types.float32(types.f32x16), types.float64(types.f64x8))
def sum_in_order(x: f32x16 | f64x8) -> float:
    """The sum of the lanes, from the first to the last."""
    total = x.dtype(0)
    for lane in x.lanes:
        total += lane
    return float(total)


@lowered_by(lambda b, x: call(b, "llvm.sqrt.f32", F32, x), types.float32(types.float32))
def sqrt(x: float) -> float:
    """The square root of a float32."""
    return float(np.sqrt(np.float32(x)))


@lowered_by(lambda b, x: OPERATIONS.reciprocal(b, x), types.f32x16(types.f32x16))
def reciprocal(x: f32x16) -> f32x16:
    """1 / x; some instruction sets are exact to 2 ** -14 of it only."""
    return f32x16(1) / x


@lowered_by(
    lambda b, address: vectors.reread(b, address) if OPERATIONS.rereads_weights else address,
    types.int64(types.int64),
)
def reread(address: int) -> int:
    """The same address; where registers are few, what lies there is read again instead of kept."""
    return address


@lowered_by(vectors.prefetch, types.void(types.int64))
def prefetch(address: int) -> None:
    """Asks for the cache line of an address, which need not be mapped."""


@lowered_by(lambda b, x: b.sitofp(x, F32S), types.f32x16(types.i32x16))
def to_f32(x: i32x16) -> f32x16:
    """The float32 nearest to each int32."""
    return f32x16(x.lanes)


def _store_first(builder: Any, x: Any, address: Any, count: Any) -> None:
    mask, whole = first_lanes(builder, count), builder.icmp_signed(">=", count, word(LANES))
    OPERATIONS.store_first(builder, x, address, mask, whole)


@lowered_by(
    lambda b, address, x, n: _store_first(b, x, address, n),
    types.void(types.int64, types.f32x16, types.int64),
)
def store_first_f32(address: int, x: f32x16, count: int) -> None:
    """Writes the first lanes as float32: as many as `count`, none or all where there are not so many."""
    count = max(0, min(count, LANES))
    memory(address, np.float32, count)[:] = x.lanes[:count]


@lowered_by(
    lambda b, address, x, n: _store_first(b, OPERATIONS.round_to_bfloat16(b, x), address, n),
    types.void(types.int64, types.f32x16, types.int64),
)
def store_first_bf16(address: int, x: f32x16, count: int) -> None:
    """Writes the first lanes as bfloat16: as many as `count`, none or all where there are not so many."""
    count = max(0, min(count, LANES))
    memory(address, np.uint16, count)[:] = bfloat16_bits(x)[:count]


@lowered_by(
    lambda b, words, part: OPERATIONS.pairs.weights(b, words)[part.constant],
    *(kind(kind, types.int64) for kind in _WORDS),
)
def pair_weights(words: AnyWords, part: int) -> AnyWords:
    """A part of each word of two bfloat16, for add_pairs(). part: a constant below PAIR_PARTS."""
    return words if PAIR_PARTS == 1 else words & -65536 if part == 0 else words << 16


@lowered_by(
    lambda b, words, part: OPERATIONS.pairs.inputs(b, words)[part.constant],
    types.i32x16(types.i32x16, types.int64),
)
def pair_inputs(words: i32x16, part: int) -> i32x16:
    """A part of each word of two bfloat16, as add_pairs() takes inputs. part: a constant below PAIR_PARTS."""
    return words if PAIR_PARTS == 1 else words & -65536 if part == 0 else words << 16


_ADD_FLOATS = [
    floats(floats, words, words)
    for floats, words in ((types.f32x8, types.i32x8), (types.f32x16, types.i32x16))
]


@lowered_by(lambda b, sums, weights, x: OPERATIONS.pairs.add(b, sums, weights, x), *_ADD_FLOATS)
def add_pairs(sums: AnyVector, weights: AnyWords, x: AnyWords) -> AnyVector:
    """sums + weights * x, of a part of words of two bfloat16; of whole words the second product is added
    first. Some instruction sets take denormal numbers for 0."""
    if PAIR_PARTS > 1:
        return fma(_as_f32(weights, sums), _as_f32(x, sums), sums)
    upper = fma(_as_f32(weights & -65536, sums), _as_f32(x & -65536, sums), sums)
    return fma(_as_f32(weights << 16, sums), _as_f32(x << 16, sums), upper)


def _as_f32(bits: Vector, sums: AnyVector) -> AnyVector:
    """The float32 that have these bits, as many as there are sums."""
    return type(sums)(bits.lanes.view(np.float32))


@lowered_by(
    lambda b, words, part: OPERATIONS.quads.weights(b, words)[part.constant],
    types.i32x16(types.i32x16, types.int64),
)
def quad_weights(words: i32x16, part: int) -> i32x16:
    """A part of each word of four signed bytes, for add_quads(). part: a constant below QUAD_PARTS."""
    if QUAD_PARTS == 1:
        return words
    pairs = words.lanes.view(np.int16)
    return i32x16((pairs >> 8 if part else (pairs << 8) >> 8).view(np.int32))


@lowered_by(
    lambda b, words, part: OPERATIONS.quads.inputs(b, words)[part.constant],
    types.i32x16(types.i32x16, types.int64),
)
def quad_inputs(words: i32x16, part: int) -> i32x16:
    """A part of each word of four unsigned bytes, for add_quads(). part: a constant below QUAD_PARTS."""
    return words if QUAD_PARTS == 1 else (words >> 8 if part else words) & 0x00FF00FF


@lowered_by(lambda b, words, part: words, *(kind(kind, types.int64) for kind in _WORDS))
def whole_words(words: AnyWords, part: int) -> AnyWords:
    """The words, of which there is one part."""
    return words


@lowered_by(lambda b, sums, weights, x: OPERATIONS.floats.add(b, sums, weights, x), *_ADD_FLOATS)
def add_floats(sums: AnyVector, weights: AnyWords, x: AnyWords) -> AnyVector:
    """sums + weights * x, of words that are a float32 each; rounded once."""
    return fma(_as_f32(weights, sums), _as_f32(x, sums), sums)


_ADD_QUADS = types.i32x16(types.i32x16, types.i32x16, types.i32x16)


@lowered_by(lambda b, sums, weights, x: OPERATIONS.quads.add(b, sums, weights, x), _ADD_QUADS)
def add_quads(sums: i32x16, weights: i32x16, x: i32x16) -> i32x16:
    """sums + weights * x, of a part of words of four bytes: signed weights, unsigned x."""
    kinds = (np.int8, np.uint8, 4) if QUAD_PARTS == 1 else (np.int16, np.int16, 2)
    one = weights.lanes.view(kinds[0]).astype(np.int32)
    products = one * x.lanes.view(kinds[1]).astype(np.int32)
    return sums + i32x16(products.reshape(LANES, kinds[2]).sum(-1))


@lowered_by(lambda b, sums, weights, x: OPERATIONS.nibbles.add(b, sums, weights, x), _ADD_QUADS)
def add_nibbles(sums: i32x16, weights: i32x16, x: i32x16) -> i32x16:
    """sums + weights * x, of words of four bytes: weights of 0 .. 127, signed x."""
    products = weights.lanes.view(np.uint8).astype(np.int32) * x.lanes.view(np.int8).astype(np.int32)
    return sums + i32x16(products.reshape(LANES, 4).sum(-1))


def _add_two(builder: Any, sums: Any, first: Any, x: Any, second: Any, other_x: Any) -> Any:
    return OPERATIONS.nibbles.add_two(builder, sums, (first, second), (x, other_x))


@lowered_by(_add_two, types.i32x16(*[types.i32x16] * 5))
def add_two_nibbles(sums: i32x16, first: i32x16, x: i32x16, second: i32x16, other_x: i32x16) -> i32x16:
    """sums + first * x + second * other_x, of words of four bytes: weights of 0 .. 63, signed inputs."""
    return add_nibbles(add_nibbles(sums, first, x), second, other_x)
