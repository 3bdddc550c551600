"""Numbers of 8 bits as float8 e4m3 (fn): a sign, 4 bits of exponent with a bias of 7, 3 of the fraction.

The largest is 448. There is no infinity, and all other bits set mean NaN. Every number is one of bfloat16
too, so that widening is exact.

Source: OCP 8-bit Floating Point Specification (OFP8), 2023.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.isa.vectors import I16, call, splat

_NAN, _QUIET = 0x7F, 0x7FC0
_PIECES = ((7, 0x3A80), (6, 0x3B00), (5, 0x3B80), (4, 0x3C00))
"""(shift, offset): bits of a bfloat16, but its sign, are (code << shift) + offset, where that is the least.
The last one is that of normal numbers; the exponent of the others goes up by 1 for 1, 2 and 4 codes."""
_LARGEST_BITS, _LEAST_NORMAL_BITS, _INFINITE_BITS = 0x43E00000, 0x3C800000, 0x7F800000
"""Of float32: 448, 2 ** -6, infinity."""


def widened(builder: Any, codes: Any) -> Any:
    """Numbers of e4m3, a vector of bytes, as bfloat16: as many integers of 16 bits."""
    kind = ir.VectorType(I16, codes.type.count)
    wide = builder.zext(codes, kind)
    code = builder.and_(wide, splat(kind, 0x7F))
    pieces = [
        builder.add(builder.shl(code, splat(kind, shift)), splat(kind, offset)) for shift, offset in _PIECES
    ]
    bits, name = pieces[0], f"llvm.umin.v{kind.count}i16"
    for piece in pieces[1:]:
        bits = call(builder, name, kind, bits, piece)
    bits = builder.select(builder.icmp_unsigned("==", code, splat(kind, 0)), splat(kind, 0), bits)
    bits = builder.select(builder.icmp_unsigned("==", code, splat(kind, _NAN)), splat(kind, _QUIET), bits)
    sign = builder.shl(builder.and_(wide, splat(kind, 0x80)), splat(kind, 8))
    return builder.or_(bits, sign)


def bfloat16_of(code: int) -> int:
    """The bits of the bfloat16 that equals the e4m3 number with this code: the formula of widened()."""
    magnitude = code & _NAN
    bits = min((magnitude << shift) + offset for shift, offset in _PIECES)
    bits = 0 if magnitude == 0 else _QUIET if magnitude == _NAN else bits
    return bits | (code & 0x80) << 8


def code_of(bits: int) -> int:
    """The code of the e4m3 number nearest to a float32 with these bits, ties to even. What is larger than 448
    becomes 448, and NaN stays NaN."""
    magnitude, sign = bits & 0x7FFFFFFF, bits >> 24 & 0x80
    if magnitude > _INFINITE_BITS:
        return sign | 0x7F
    if magnitude >= _LARGEST_BITS:
        return sign | 0x7E
    if magnitude >= _LEAST_NORMAL_BITS:
        return sign | ((magnitude + 0x7FFFF + (magnitude >> 20 & 1)) >> 20) - 960
    exponent = magnitude >> 23
    if exponent < 117:  # below 2 ** -10, half of the least one
        return sign
    fraction, shift = magnitude & 0x7FFFFF | 0x800000, 141 - exponent
    odd = fraction >> shift & 1
    return sign | (fraction + (1 << (shift - 1)) - 1 + odd) >> shift
