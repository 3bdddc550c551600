"""Layers around one weight matrix, which the compiled kernels keep in a packed form."""

from collections.abc import Iterator

import torch

from kernels.api import (
    Arena,
    GroupedWeight,
    GroupedWords,
    LowBitWeight,
    PackedMatrix,
    PackedTable,
    WeightForms,
    grouped_weight,
)
from worker.layers.base import WeightOwner, WeightSlot


class Matrix(WeightOwner):
    """A weight [out, in], an optional bias, and their product with an input.

    Loading fills `weight`, or `words`, which hold() puts in its place. pack() replaces them by
    `packed`, which holds the same numbers or their quantized values. On a CUDA device `low_bits` may stand in
    place of `weight`.
    """

    is_table = False
    """Whether it is the head, or rows of it are looked up: then its form is that of the head
    (kernels.cpu.weight_forms)."""
    holds_words = True
    """Whether the weight may become words; never that of a table."""

    def __init__(
        self, weight: torch.nn.Parameter, bias: torch.nn.Parameter | None = None, adds_bias: bool = True
    ) -> None:
        """adds_bias: False leaves the bias to another rank."""
        super().__init__()
        self.weight, self.bias, self.adds_bias = weight, bias, adds_bias
        self.packed: PackedMatrix | None = None
        self.words: GroupedWords | None = None
        self.low_bits: LowBitWeight | None = None

    def slots(self) -> Iterator[WeightSlot]:
        if self.holds_words and not self.is_table:
            yield WeightSlot(self.weight, self.hold)

    def hold(self, words: GroupedWords) -> None:
        """Takes words in place of the weight. pack() must follow."""
        self.words = words
        del self.weight

    def hold_low_bits(self, weight: LowBitWeight) -> None:
        """Takes values of few bits in place of the weight, on a CUDA device."""
        self.low_bits = weight
        del self.weight

    def pack(self, forms: WeightForms, arena: Arena) -> None:
        bias = self.bias if self.adds_bias else None
        if self.words is not None:
            self.packed, self.words = grouped_weight(self.words, bias), None
            return
        self.packed = (forms.head if self.is_table else forms.matrix)(self.weight, bias, arena)
        del self.weight

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrix, or of what becomes it; 0 where the weight is a parameter."""
        held = self.packed or self.words or self.low_bits
        return 0 if held is None else held.nbytes

    @property
    def table(self) -> PackedTable | None:
        """`packed`, of a table."""
        assert not isinstance(self.packed, GroupedWeight)
        return self.packed

    def product(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the bias unless another rank adds it. wide: the result is float32."""
        if self.packed is not None:
            return self.ops.packed_linear(x, self.packed, wide)
        bias = self.bias if self.adds_bias else None
        if self.low_bits is not None:
            return self.ops.low_bit_linear(x, self.low_bits, bias, wide)
        return self.ops.linear(x, self.weight, bias, wide)
