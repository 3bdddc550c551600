"""The weights of all experts of one product, each a matrix of its own."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.api import LowBitWeight, PackedMatrix, WeightForms
from worker.layers.base import Weight
from worker.layers.matrix import (
    AdaptedMatrix,
    LinearMethod,
    LowBitMethod,
    MatrixOwner,
    PackedMethod,
    PlainMethod,
    WeightSlot,
)
from worker.parallel import Placement


class ExpertMatrices(MatrixOwner):
    """The N matrices [out, in] of this rank's experts, and biases [N, out] where there are any. On a CPU each
    has a linear method; on a CUDA device all have one, of a parameter [N, out, in] or of low bits.

    A checkpoint has a module per expert and part, whose names hold {expert}, or one tensor [N, out, in] of
    all.
    """

    takes_adapters = True
    adds_bias = True

    def __init__(
        self,
        num_experts: int,
        in_features: int,
        out_lengths: tuple[int, ...],
        place: Placement,
        bias: bool = False,
        transposed: bool = False,
        alternating: bool = False,
    ) -> None:
        """num_experts: of all ranks. out_lengths: of the outputs' parts, side by side. transposed: the one
        tensor is [N, in, out]. alternating: its outputs take turns between the parts."""
        super().__init__()
        self.in_features, self.out_lengths = in_features, out_lengths
        self.transposed, self.alternating = transposed, alternating
        self.out_features = sum(out_lengths)
        self.num_stored, self.held = num_experts, place.group.owned(place.group.rank, num_experts)
        self.num_experts = len(self.held)
        shape = self.out_features, in_features
        self.is_stacked = place.stacks_experts
        weights = [(self.num_experts, *shape)] if self.is_stacked else [shape] * self.num_experts
        self.methods = torch.nn.ModuleList(PlainMethod(place.empty(*each)) for each in weights)
        self.bias = place.empty(self.num_experts, self.out_features) if bias else None

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        return (AdaptedMatrix(self.in_features, self.out_lengths),) * self.num_experts

    def slots(self) -> Iterator[WeightSlot]:
        for index, method in enumerate(self.methods):
            assert isinstance(method, PlainMethod)
            yield WeightSlot(method.weight, partial(self._hold, index))

    def _hold(self, index: int, method: LinearMethod) -> None:
        self.methods[index] = method

    def pack(self, forms: WeightForms) -> None:
        for expert in range(self.num_experts):
            self.methods[expert] = self.method_of(expert).pack(forms.matrix, self._bias_of(expert))

    @property
    def packed(self) -> list[PackedMatrix]:
        """The matrices as a CPU's kernels multiply by them, by expert; empty where they are not packed."""
        return [method.weight for method in self.methods if isinstance(method, PackedMethod)]

    @property
    def stacked(self) -> torch.Tensor | LowBitWeight:
        """The weights of all experts, [N, out, in], on a CUDA device."""
        (method,) = self.methods
        assert isinstance(method, PlainMethod | LowBitMethod)
        return method.weight

    def method_of(self, expert: int) -> LinearMethod:
        """Returns the linear method of one expert."""
        method = self.methods[0 if self.is_stacked else expert]
        assert isinstance(method, LinearMethod)
        return method.expert(expert) if self.is_stacked else method

    def product(self, x: torch.Tensor, expert: int) -> torch.Tensor:
        """[P, in] -> [P, out]."""
        return self.method_of(expert).product(self.ops, x, self._bias_of(expert), wide=False)

    def _weight_of(self, expert: int) -> torch.Tensor:
        """Returns the parameter of one expert, or its part of the one of all."""
        method = self.method_of(expert)
        assert isinstance(method, PlainMethod)
        return method.weight

    def _bias_of(self, expert: int) -> torch.Tensor | None:
        return None if self.bias is None else self.bias[expert]

    def weights(self, *names: str) -> Iterator[Weight]:
        """Modules with {expert} in their names, one per part or one for all; or the full name of the one
        tensor, and that of its biases."""
        for index, expert in enumerate(self.held):
            if "{expert}" in names[0]:
                yield from self._of_one(index, [name.format(expert=expert) for name in names])
            else:
                yield from self._of_all(index, expert, *names)

    def elsewhere(self, *names: str) -> Iterator[str]:
        if "{expert}" not in names[0]:
            return
        for expert in sorted(set(range(self.num_stored)).difference(self.held)):
            for name in names:
                yield f"{name.format(expert=expert)}.weight"
                if self.bias is not None:
                    yield f"{name.format(expert=expert)}.bias"

    def read_as_stored(self, shape: tuple[int, ...]) -> None:
        """Goes by the shape of the one tensor, which versions of transformers write as [N, in, out] or as
        [N, out, in] for the same family. Where both are equal, or neither fits, the family says which."""
        stored = self.num_stored, self.out_features, self.in_features
        if self.transposed and shape == stored and self.out_features != self.in_features:
            self.transposed = False

    def stacked_rows(self) -> list[slice]:
        """Returns the outputs of each part in the one tensor of all experts."""
        begin, rows = 0, list[slice]()
        for number, length in enumerate(self.out_lengths):
            if self.alternating:
                rows.append(slice(number, self.out_features, len(self.out_lengths)))
            else:
                rows.append(slice(begin, begin + length))
            begin += length
        return rows

    def _of_one(self, index: int, names: list[str]) -> Iterator[Weight]:
        at = 0
        for length, name in zip(self.out_lengths, names, strict=True):
            target = slice(at, at + length)
            yield Weight(f"{name}.weight", (length, self.in_features), self._weight_of(index)[target])
            if self.bias is not None:
                yield Weight(f"{name}.bias", (length,), self.bias[index, target])
            at += length

    def _of_all(self, index: int, expert: int, name: str, bias_name: str = "") -> Iterator[Weight]:
        weight, one, inputs = self._weight_of(index), slice(expert, expert + 1), self.in_features
        bias = None if self.bias is None else self.bias[index]
        count, outputs = self.num_stored, self.out_features
        if self.alternating:
            parts = len(self.out_lengths)
            in_turns = weight.view(parts, -1, inputs).permute(2, 1, 0)  # [in, out / parts, parts]
            yield Weight(name, (count, inputs, outputs), in_turns[None], (one,))
            if bias is not None:
                yield Weight(bias_name, (count, outputs), bias.view(parts, -1).t()[None], (one,))
            return
        at = 0
        for length in self.out_lengths:
            rows, filled = slice(at, at + length), weight[at : at + length]
            shape, where = (count, outputs, inputs), (one, rows, slice(None))
            if self.transposed:
                shape, where, filled = (count, inputs, outputs), (one, slice(None), rows), filled.t()
            yield Weight(name, shape, filled[None], where)
            if bias is not None:
                yield Weight(bias_name, (count, outputs), bias[rows][None], (one, rows))
            at += length
