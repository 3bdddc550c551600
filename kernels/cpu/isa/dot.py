"""Dot products of the words that weights and inputs are packed in: a float32, two bfloat16 or four bytes.

A set with an instruction for them takes words as they are. Any other multiplies parts of words: a pair of
bfloat16 is two float32, and four bytes are two pairs of 16-bit integers.
"""

from abc import ABC, abstractmethod
from typing import Any

from llvmlite import ir

from kernels.cpu.isa.vectors import I16, I32S, LANES, call, splat

I16_PAIRS = ir.VectorType(I16, 2 * LANES)
_BYTES_OF_PAIRS = 0x00FF00FF


class Dot(ABC):
    """Adds products of weights and inputs to sums. This one: of words as they are."""

    parts = 1
    """Of a word. An input that is multiplied with many weights is best split once, in memory."""
    takes_bytes = True
    """Whether unsigned bytes may be 128 or more."""

    def weights(self, builder: Any, words: Any) -> list[Any]:
        """The parts of weights, I32S."""
        return [words]

    def inputs(self, builder: Any, words: Any) -> list[Any]:
        """The parts of inputs: of an i32 or of a vector of them, as such."""
        return [words]

    @abstractmethod
    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """The sums, and the products of a part of the weights and the same part of inputs, both I32S."""

    def add_two(self, builder: Any, sums: Any, weights: tuple[Any, Any], values: tuple[Any, Any]) -> Any:
        """The same of two words of bytes, whose weights are below 64."""
        for weight, value in zip(weights, values, strict=True):
            sums = self.add(builder, sums, weight, value)
        return sums


class FloatDot(Dot):
    """Of float32 values: every product is rounded once, with its sum."""

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """Of as many floats as there are sums."""
        kind = sums.type
        weight, value = builder.bitcast(weight, kind), builder.bitcast(value, kind)
        return call(builder, f"llvm.fma.v{kind.count}f32", kind, weight, value, sums)


class PairDot(FloatDot):
    """Of pairs of bfloat16: the products are exact, and each sum is rounded to float32. The second of a pair
    is added first, as AVX512-BF16 does it, so that the results are the same."""

    parts = 2

    def weights(self, builder: Any, words: Any) -> list[Any]:
        """float32 values, as I32S."""
        return self.inputs(builder, words)

    def inputs(self, builder: Any, words: Any) -> list[Any]:
        """float32 values, as integers."""
        upper = builder.and_(words, splat(words.type, -(1 << 16)))
        return [upper, builder.shl(words, splat(words.type, 16))]


class IntegerDot(Dot):
    """Of four bytes, signed weights and unsigned inputs, in exact sums."""

    parts = 2

    def weights(self, builder: Any, words: Any) -> list[Any]:
        """Pairs of int16: the first and third byte, the second and fourth."""
        pairs, byte = builder.bitcast(words, I16_PAIRS), splat(I16_PAIRS, 8)
        parts = builder.ashr(builder.shl(pairs, byte), byte), builder.ashr(pairs, byte)
        return [builder.bitcast(part, I32S) for part in parts]

    def inputs(self, builder: Any, words: Any) -> list[Any]:
        """Pairs of int16."""
        odd = builder.lshr(words, splat(words.type, 8))
        return [builder.and_(part, splat(words.type, _BYTES_OF_PAIRS)) for part in (words, odd)]

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """I32S."""
        return builder.add(sums, self.multiply_pairs(builder, weight, value))

    def multiply_pairs(self, builder: Any, one: Any, other: Any) -> Any:
        """one[2 i] * other[2 i] + one[2 i + 1] * other[2 i + 1], of int16."""
        half = splat(I32S, 16)
        first = builder.mul(*(builder.ashr(builder.shl(side, half), half) for side in (one, other)))
        second = builder.mul(*(builder.ashr(side, half) for side in (one, other)))
        return builder.add(first, second)


class NibbleDot(Dot):
    """Of four bytes, unsigned weights below 128 and signed inputs, in exact sums."""

    def __init__(self, bytes_: IntegerDot) -> None:
        """bytes_: what multiplies signed by unsigned bytes."""
        self._bytes = bytes_

    def add(self, builder: Any, sums: Any, weight: Any, value: Any) -> Any:
        """I32S."""
        sides = self._bytes.weights(builder, value), self._bytes.inputs(builder, weight)
        for signed, unsigned in zip(*sides, strict=True):
            sums = self._bytes.add(builder, sums, signed, unsigned)
        return sums
