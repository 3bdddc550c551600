"""The weights of all experts of one product, each a matrix of its own."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.api import (
    Arena,
    GroupedWords,
    LowBitWeight,
    PackedMatrix,
    WeightForms,
    grouped_weight,
    padded_rows,
)
from worker.layers.base import Weight, WeightOwner, WeightSlot
from worker.layers.linear import Part
from worker.parallel import Placement


class ExpertMatrices(WeightOwner):
    """N matrices [out, in], and biases [N, out] where there are any. On a CPU each is a parameter of its own,
    which is packed by itself; on a CUDA device all are one, [N, out, in], or `low_bits` in its place.

    A checkpoint has a module per expert and part, whose names hold {expert}, or one tensor [N, out, in] of
    all.
    """

    def __init__(
        self,
        num_experts: int,
        in_part: Part,
        out_parts: tuple[Part, ...],
        place: Placement,
        bias: bool = False,
        transposed: bool = False,
        alternating: bool = False,
        adds_bias: bool = True,
    ) -> None:
        """in_part, out_parts: what this rank holds of the inputs, and of the outputs, side by side.
        transposed: the one tensor is [N, in, out]. alternating: its outputs take turns between the parts.
        adds_bias: False leaves it to another rank."""
        super().__init__()
        self.in_part, self.out_parts = in_part, out_parts
        self.transposed, self.alternating = transposed, alternating
        self.out_features = sum(part.held for part in out_parts)
        self.num_experts = num_experts
        shape = self.out_features, in_part.held
        self.on_device = place.stacks_experts
        self.stacked = place.empty(num_experts, *shape) if self.on_device else None
        self.low_bits: LowBitWeight | None = None  # of all experts, each padded to tiles of its own
        if not self.on_device:
            self.each = torch.nn.ParameterList(place.empty(*shape) for _ in range(num_experts))
        self.bias = place.empty(num_experts, self.out_features) if bias else None
        self.adds_bias = adds_bias
        self.packed: list[PackedMatrix] = []
        self.words: dict[int, GroupedWords] = {}  # by expert, of those without a parameter

    def slots(self) -> Iterator[WeightSlot]:
        for expert in range(0 if self.on_device else self.num_experts):
            yield WeightSlot(self.each[expert], partial(self.hold, expert))

    def hold(self, expert: int, words: GroupedWords) -> None:
        """Takes words in place of a weight. pack() must follow."""
        self.words[expert] = words
        self._free(expert)

    def hold_low_bits(self, weight: LowBitWeight) -> None:
        """Takes values of few bits in place of the weights, on a CUDA device."""
        self.low_bits, self.stacked = weight, None

    def pack(self, forms: WeightForms, arena: Arena) -> None:
        for expert in range(self.num_experts):
            bias, words = self._bias_of(expert), self.words.pop(expert, None)
            weight = self.each[expert]
            packed = forms.matrix(weight, bias, arena) if words is None else grouped_weight(words, bias)
            self.packed.append(packed)
            self._free(expert)
        del self.each

    def _free(self, expert: int) -> None:
        """Frees the memory of a parameter."""
        self.each[expert] = torch.nn.Parameter(torch.empty(0), requires_grad=False)

    @property
    def nbytes(self) -> int:
        """Bytes of the packed matrices, and of what becomes such."""
        low_bits = 0 if self.low_bits is None else self.low_bits.nbytes
        return low_bits + sum(held.nbytes for held in (*self.packed, *self.words.values()))

    def product(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[P, in] -> [P, out]."""
        if self.packed:
            return self.ops.packed_linear(x, self.packed[expert])
        if self.low_bits is not None:
            first = expert * padded_rows(self.out_features)
            part = self.low_bits.part(first, self.out_features)
            return self.ops.low_bit_linear(x, part, self._bias_of(expert))
        return self.ops.linear(x, self._weight_of(expert), self._bias_of(expert))

    def _weight_of(self, expert: int) -> torch.Tensor:
        """Returns the parameter of one expert, or its part of the one of all."""
        return self.each[expert] if self.stacked is None else self.stacked[expert]

    def _bias_of(self, expert: int) -> torch.Tensor | None:
        return self.bias[expert] if self.bias is not None and self.adds_bias else None

    def weights(self, *names: str) -> Iterator[Weight]:
        """Modules with {expert} in their names, one per part or one for all; or the full name of the one
        tensor, and that of its biases."""
        if "{expert}" in names[0]:
            for expert in range(self.num_experts):
                yield from self._of_one(expert, [name.format(expert=expert) for name in names])
            return
        for expert in range(self.num_experts):
            yield from self._of_all(expert, *names)

    def _of_one(self, expert: int, names: list[str]) -> Iterator[Weight]:
        at, columns = 0, self.in_part
        for part, name in zip(self.out_parts, names, strict=True):
            target = slice(at, at + part.held)
            shape, where = (part.length, columns.length), (part.local, columns.local)
            yield Weight(f"{name}.weight", shape, self._weight_of(expert)[target], where)
            if self.bias is not None:
                yield Weight(f"{name}.bias", (part.length,), self.bias[expert, target], (part.local,))
            at += part.held

    def _of_all(self, expert: int, name: str, bias_name: str = "") -> Iterator[Weight]:
        weight, one, columns = self._weight_of(expert), slice(expert, expert + 1), self.in_part
        bias = None if self.bias is None else self.bias[expert]
        count, total = self.num_experts, sum(part.length for part in self.out_parts)
        if self.alternating:
            parts, local = len(self.out_parts), self.out_parts[0].local
            rows = slice(parts * local.start, parts * local.stop)
            in_turns = weight.view(parts, -1, columns.held).permute(2, 1, 0)  # [in, out / parts, parts]
            shape, where = (count, columns.length, total), (one, columns.local, rows)
            yield Weight(name, shape, in_turns[None], where)
            if bias is not None:
                yield Weight(bias_name, (count, total), bias.view(parts, -1).t()[None], (one, rows))
            return
        at = begin = 0
        for part in self.out_parts:
            rows, target = slice(begin + part.local.start, begin + part.local.stop), slice(at, at + part.held)
            shape, where, filled = (count, total, columns.length), (one, rows, columns.local), weight[target]
            if self.transposed:
                shape, where, filled = (count, columns.length, total), (one, columns.local, rows), filled.t()
            yield Weight(name, shape, filled[None], where)
            if bias is not None:
                yield Weight(bias_name, (count, total), bias[target][None], (one, rows))
            at, begin = at + part.held, begin + part.length
