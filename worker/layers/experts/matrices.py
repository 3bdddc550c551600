"""The weights of all experts of one product, each a matrix of its own."""

from collections.abc import Iterator
from functools import partial

import torch

from kernels.api import LowBitWeight, PackedMatrix, WeightForms
from worker.layers.base import Weight
from worker.layers.linear import Part
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
    """N matrices [out, in], and biases [N, out] where there are any. On a CPU each has a linear method; on a
    CUDA device all have one, of a parameter [N, out, in] or of low bits.

    A checkpoint has a module per expert and part, whose names hold {expert}, or one tensor [N, out, in] of
    all.
    """

    takes_adapters = True

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
        self.is_stacked = place.stacks_experts
        weights = [(num_experts, *shape)] if self.is_stacked else [shape] * num_experts
        self.methods = torch.nn.ModuleList(PlainMethod(place.empty(*each)) for each in weights)
        self.bias = place.empty(num_experts, self.out_features) if bias else None
        self.adds_bias = adds_bias

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        outputs = tuple(part.held for part in self.out_parts)
        return (AdaptedMatrix(self.in_part.held, outputs),) * self.num_experts

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

    def stacked_rows(self) -> list[slice]:
        """Returns the outputs of each part in the one tensor of all experts, those that this rank holds."""
        begin, rows = 0, list[slice]()
        for number, part in enumerate(self.out_parts):
            first, last, step = begin + part.local.start, begin + part.local.stop, 1
            if self.alternating:
                step = len(self.out_parts)
                first, last = step * part.local.start + number, step * part.local.stop
            rows.append(slice(first, last, step))
            begin += part.length
        return rows

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
