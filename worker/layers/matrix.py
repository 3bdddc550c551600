"""Layers around a weight matrix, and its linear method: how it is held and multiplied by.

    PlainMethod     a parameter, which torch multiplies by, or Triton on a CUDA device
    GroupedMethod   the 4 bits of a checkpoint, on a CPU, until they are packed
    PackedMethod    the form that the CPU's compiled kernels multiply by
    ShareMethod     the same, of a rank's inputs, where ranks add integers
    LowBitMethod    4 or 8 bits on a CUDA device

A layer begins with a PlainMethod. Loading replaces it before anything is filled (worker.weights.held_bits),
and a CPU's kernels once more, when all is (pack()).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F

from kernels.api import (
    GroupedWords,
    InputBatch,
    LowBitWeight,
    Ops,
    Pack,
    PackedMatrix,
    PackedTable,
    QuantizedWeight,
    SumOrder,
    WeightForms,
)
from worker.layers.base import WeightOwner


class LinearMethod(torch.nn.Module, ABC):
    """Owns the memory of a matrix [N, K]; on a CUDA device also of those of all experts."""

    weight: torch.Tensor | GroupedWords | PackedMatrix | LowBitWeight

    def __init__(self, weight: torch.Tensor | GroupedWords | PackedMatrix | LowBitWeight) -> None:
        super().__init__()
        self.weight = weight

    def leaf_multiple(self, forms: WeightForms) -> int:
        """Returns of how many inputs the leaves of the packed matrix have a multiple
        (kernels.ops.layers.leaves). forms: of parameters."""
        return forms.leaf_multiple

    def pack(self, form: Pack, bias: torch.Tensor | None, leaves: int = 1) -> "LinearMethod":
        """Returns the method for a CPU's kernels, once all rows are filled. form: of a parameter. bias: [N]
        or None. leaves: of which a product is the sum."""
        raise TypeError(f"{type(self).__name__} has its last form")

    def expert(self, index: int) -> "LinearMethod":
        """Returns the method of one of all experts; memory is shared."""
        raise TypeError(f"{type(self).__name__} owns one matrix")

    @abstractmethod
    def product(
        self,
        ops: Ops,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        wide: bool,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        """[T, K] -> [T, N]. bias: [N] or None; a packed matrix has its own. wide: the result is float32.
        order: of sums by a parameter on a CUDA device; None: no other rank has a part of the matrix."""


class PlainMethod(LinearMethod):
    """A parameter [N, K], or [experts, N, K]."""

    weight: torch.Tensor

    def pack(self, form: Pack, bias: torch.Tensor | None, leaves: int = 1) -> LinearMethod:
        return PackedMethod(form(self.weight, bias, leaves=leaves))

    def expert(self, index: int) -> LinearMethod:
        return PlainMethod(self.weight[index])

    def product(
        self,
        ops: Ops,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        wide: bool,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        return ops.linear(x, self.weight, bias, wide, order)


class GroupedMethod(LinearMethod):
    """Integers or floats of 4 bits, which must be packed before they are multiplied by."""

    weight: GroupedWords

    def leaf_multiple(self, forms: WeightForms) -> int:
        return self.weight.leaf_multiple

    def pack(self, form: Pack, bias: torch.Tensor | None, leaves: int = 1) -> LinearMethod:
        return PackedMethod(self.weight.pack(bias, leaves=leaves))

    def product(
        self,
        ops: Ops,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        wide: bool,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        raise RuntimeError("weights of 4 bits are packed before they are multiplied by")


class PackedMethod(LinearMethod):
    """A matrix with its bias, as kernels.cpu.weight_forms packs it."""

    weight: PackedMatrix

    def product(
        self,
        ops: Ops,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        wide: bool,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        return ops.packed_linear(x, self.weight, wide)


class ShareMethod(PackedMethod):
    """A rank's inputs of a matrix of integers, whose sums are exact in any order."""

    weight: QuantizedWeight


class LowBitMethod(LinearMethod):
    """Values of few bits of one matrix, or of all experts."""

    weight: LowBitWeight

    def expert(self, index: int) -> LinearMethod:
        return LowBitMethod(self.weight.expert(index))

    def product(
        self,
        ops: Ops,
        x: torch.Tensor,
        bias: torch.Tensor | None,
        wide: bool,
        order: SumOrder | None = None,
    ) -> torch.Tensor:
        return ops.low_bit_linear(x, self.weight, bias, wide)


@dataclass(frozen=True)
class WeightSlot:
    """A matrix that may get another method before it is filled."""

    weight: torch.Tensor  # [out, in], or [experts, out, in] on a CUDA device
    hold: Callable[[LinearMethod], None]
    """Gives the matrix a method in place of the parameter."""

    @property
    def inputs(self) -> int:
        """Number of inputs."""
        return self.weight.shape[-1]


class AdaptedMatrix(NamedTuple):
    """Sizes that this rank holds of a matrix."""

    inputs: int
    parts: tuple[int, ...]  # outputs of each part


class MatrixOwner(WeightOwner, ABC):
    """A layer with one matrix, or several."""

    takes_adapters = False
    """Whether its forward() sees the tokens of the step, of which each may have an adapter."""
    number: int | None = None
    """Of its first matrix in the packed adapters of its model (worker.adapters.store), behind which are the
    others'; None: no adapter changes its products."""

    @property
    def adapted_matrices(self) -> tuple[AdaptedMatrix, ...]:
        """The matrices that an adapter may change; each has a number."""
        return ()

    @abstractmethod
    def slots(self) -> Iterator[WeightSlot]:
        """The matrices that may be held in few bits, before they are filled."""


class Matrix(MatrixOwner):
    """A weight [out, in], an optional bias, and their product with an input."""

    is_table = False
    """Whether it is the head, or rows of it are looked up: then its form is that of the head
    (kernels.cpu.weight_forms)."""
    sum_order: SumOrder | None = None
    """Of products on a CUDA device; None: no other rank has a part of the matrix."""
    keeps_parameter = False
    """Whether no other method may take the place of the parameter while it is loaded, as of a table."""

    def __init__(
        self, weight: torch.nn.Parameter, bias: torch.nn.Parameter | None = None, adds_bias: bool = True
    ) -> None:
        """adds_bias: False leaves the bias to what adds the products of ranks."""
        super().__init__()
        self.method: LinearMethod = PlainMethod(weight)
        self.bias: torch.Tensor | None = bias
        self.adds_bias = adds_bias

    @property
    def weight(self) -> torch.Tensor:
        """The parameter [out, in], of a matrix that has one."""
        assert isinstance(self.method, PlainMethod)
        return self.method.weight

    @property
    def packed(self) -> PackedMatrix | None:
        """The matrix as a CPU's kernels multiply by it; None where it is not packed."""
        return self.method.weight if isinstance(self.method, PackedMethod) else None

    @property
    def table(self) -> PackedTable | None:
        """`packed`, of a table."""
        packed = self.packed
        assert packed is None or isinstance(packed, PackedTable)
        return packed

    def slots(self) -> Iterator[WeightSlot]:
        if not self.keeps_parameter and not self.is_table:
            yield WeightSlot(self.weight, self._hold)

    def _hold(self, method: LinearMethod) -> None:
        self.method = method

    def pack(self, forms: WeightForms) -> None:
        form, multiple = forms.head if self.is_table else forms.matrix, self.method.leaf_multiple(forms)
        self.method = self.method.pack(form, self._added_bias, self.leaves(multiple))

    def leaves(self, multiple: int) -> int:
        """Returns of how many leaves a product is the sum (kernels.ops.layers.leaves). multiple: of the
        inputs of each."""
        return 1

    @property
    def _added_bias(self) -> torch.Tensor | None:
        return self.bias if self.adds_bias else None

    def product(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the bias if this adds it. wide: the result is float32."""
        return self.method.product(self.ops, x, self._added_bias, wide, self.sum_order)

    def adapted(self, y: torch.Tensor, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """Returns the product y [T, out] with what the adapters of the step's tokens make of x [T, in]."""
        return y if self.number is None else self.ops.adapt(y, x, self.number, batch.adapters)

    def look_up(self, indexes: torch.Tensor) -> torch.Tensor:
        """Returns rows of a table: [T] int64 -> [T, in]."""
        return F.embedding(indexes, self.weight) if self.table is None else self.table.rows(indexes)
