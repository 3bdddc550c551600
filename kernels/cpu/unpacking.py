"""Bits of kernels.compact: from 12 a number to the 16 that they are.

    a group   4 words of k of 16 columns, of one strip after the other:
              bytes    [4, 32]  sign << 7 | fraction, of each half of 16 words
              codes    [32]     16 bits: 4 bits for each of the 4 words

A vector of 32 bfloat16 is made by widening 32 bytes, and putting in between what its codes say:

    code 1 .. 15   exponent = base + code
    code 0         the number is rare: it is the next one of the strip's list, as it is

Seven instructions a vector where nothing in a group is rare, some twelve elsewhere.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.shares import COLUMNS, VECTORS
from kernels.cpu.vectors import (
    I16,
    I32,
    I64,
    LANES,
    call,
    load,
    store,
    word,
)

WORDS = 4
"""Of k, in a group."""
STRIP = 192
"""Bytes of a strip in a group."""
GROUP = VECTORS * STRIP
AHEAD = 16
"""Groups between what is multiplied and what is asked for from memory: no CPU foresees this stream far
enough, and without asking, eight rows take twice as long."""
CODES = STRIP - 64
"""Where the codes begin, in a strip."""
CODE = 15 << 7
"""The bits of a code, where an exponent begins."""
HALF_BYTES = ir.VectorType(ir.IntType(8), 2 * LANES)
HALVES = ir.VectorType(I16, 2 * LANES)
_SIGN_AND_FRACTION = 0x807F - 0x10000


def each(value: int) -> Any:
    """A constant in all lanes."""
    return ir.Constant(HALVES, [value] * (2 * LANES))


def base_in_each(builder: Any, base: Any) -> Any:
    """In all lanes, where an exponent begins."""
    nothing, half = ir.Constant(HALVES, ir.Undefined), builder.trunc(builder.shl(base, word(7)), I16)
    one = builder.insert_element(nothing, half, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, 2 * LANES), [0] * (2 * LANES)))


def _aligned_codes(builder: Any, codes: Any, place: int) -> Any:
    """Those of one of the four words, where an exponent begins."""
    shift = 7 - 4 * place
    moved = builder.shl(codes, each(shift)) if shift >= 0 else builder.lshr(codes, each(-shift))
    return builder.and_(moved, each(CODE))


class Strip:
    """A strip's group. base: in all lanes, where an exponent begins. rare: address of its next rare
    number."""

    def __init__(self, builder: Any, at: Any, base: Any, rare: Any) -> None:
        self._builder, self._at, self._base, self._rare = builder, at, base, rare
        self.codes = load(builder, builder.add(at, word(CODES)), HALVES)

    def unpack(self) -> list[Any]:
        """Its words, and the address that it began with: nothing is rare."""
        return [*(self._unpack(self.codes, place)[0] for place in range(WORDS)), self._rare]

    def unpack_rare(self) -> list[Any]:
        """Its words, and the address for the next group."""
        builder, rare, words = self._builder, self._rare, []
        codes = _hidden(builder, self.codes)
        for place in range(WORDS):
            halves, code = self._unpack(codes, place)
            is_rare = builder.icmp_unsigned("==", code, each(0))
            listed = load(builder, rare, HALVES)
            name = "llvm.x86.avx512.mask.expand.v32i16"
            words.append(call(builder, name, HALVES, listed, halves, is_rare))
            count = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
            rare = builder.add(rare, builder.shl(builder.zext(count, I64), word(1)))
        return [*words, rare]

    def _unpack(self, codes: Any, place: int) -> tuple[Any, Any]:
        """32 bfloat16, and the codes of these."""
        builder = self._builder
        rest = load(builder, builder.add(self._at, word(32 * place)), HALF_BYTES)
        code = _aligned_codes(builder, codes, place)
        halves = builder.and_(builder.sext(rest, HALVES), each(_SIGN_AND_FRACTION))
        return builder.or_(halves, builder.add(code, self._base)), code


def _hidden(builder: Any, values: Any) -> Any:
    """The same values, of which LLVM does not know that: else it computes what both branches need before
    the branch, for all words at once, and the registers do not suffice."""
    return builder.asm(ir.FunctionType(HALVES, [HALVES]), "", "=v,0", [values], False)


def strips_of_group(builder: Any, w: Any, group: Any, base: Any, lists: list[Any]) -> list[Strip]:
    """Side by side. lists: of each strip the address of its next rare number."""
    at = builder.add(w, builder.mul(group, word(GROUP)))
    return [Strip(builder, builder.add(at, word(STRIP * v)), base, rare) for v, rare in enumerate(lists)]


def _one_is_rare(builder: Any, strips: list[Strip]) -> Any:
    """Whether a code is 0: then its highest bit is borrowed, and was not set."""
    found = each(0)
    for strip in strips:
        borrowed = builder.and_(builder.sub(strip.codes, each(0x1111)), builder.not_(strip.codes))
        found = builder.or_(found, builder.and_(borrowed, each(0x8888 - 0x10000)))
    bits = builder.bitcast(builder.icmp_unsigned("!=", found, each(0)), I32)
    return builder.icmp_unsigned("!=", bits, ir.Constant(I32, 0))


def unpack(builder: Any, strips: list[Strip], keep: Any = None) -> tuple[list[list[Any]], list[Any]]:
    """Their words, and their lists for the next group. Most groups have no rare number, and take half the
    instructions. keep(v, words): what to do with the words of a strip instead; then none are returned."""
    ways = []
    with builder.if_else(_one_is_rare(builder, strips), likely=False) as branches:
        for branch, rare in zip(branches, (True, False), strict=True):
            with branch:
                values = []
                for v, strip in enumerate(strips):
                    *words, after = strip.unpack_rare() if rare else strip.unpack()
                    if keep is not None:
                        keep(v, words)
                        words = []
                    values += [*words, after]
                ways.append((builder.block, values))
    merged = []
    for pair in zip(*(values for _, values in ways), strict=True):
        phi = builder.phi(pair[0].type)
        for (block, _), value in zip(ways, pair, strict=True):
            phi.add_incoming(value, block)
        merged.append(phi)
    size = len(merged) // len(strips)
    parts = [merged[size * v : size * (v + 1)] for v in range(len(strips))]
    return [part[:-1] for part in parts], [part[-1] for part in parts]


def unpack_to(builder: Any, strips: list[Strip], out: Any) -> list[Any]:
    """Words as kernels.linear has them. Returns the lists for the next group."""

    def keep(v: int, words: list[Any]) -> None:
        for place, values in enumerate(words):
            store(builder, values, builder.add(out, word(4 * COLUMNS * place + 4 * LANES * v)))

    return unpack(builder, strips, keep)[1]


def lists_of_strips(builder: Any, rare: Any, vectors: int) -> list[Any]:
    """Addresses of so many strips' first rare numbers. rare: address of these addresses."""
    return [load(builder, builder.add(rare, word(8 * v)), I64) for v in range(vectors)]
