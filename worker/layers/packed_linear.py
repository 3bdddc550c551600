"""Layers around one weight matrix, which the compiled kernels keep in a packed form."""

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels
from kernels.cpu.matmul.groups.weight import GroupedWeight
from kernels.cpu.weight_forms import PackedMatrix, PackedTable
from kernels.ops.layers.linear import linear
from worker.layers.base import WeightOwner
from worker.lowering.builder import ProgramBuilder


class Matrix(WeightOwner):
    """A weight [out, in], an optional bias, and their product with an input.

    Loading fills `weight`. use_kernels() replaces it by `packed`, which holds the same numbers or their
    quantized values.
    """

    is_table = False
    """Whether it is the head, or rows of it are looked up: then its form is that of the head
    (kernels.cpu.weight_forms)."""

    def __init__(
        self, weight: torch.nn.Parameter, bias: torch.nn.Parameter | None = None, adds_bias: bool = True
    ) -> None:
        """adds_bias: False leaves the bias to another rank."""
        super().__init__()
        self.weight, self.bias, self.adds_bias = weight, bias, adds_bias
        self.packed: PackedMatrix | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Packs the weight."""
        pack = kernels.forms.head if self.is_table else kernels.forms.matrix
        self.packed = pack(self.weight, self.bias if self.adds_bias else None, kernels.arena)
        del self.weight

    @property
    def table(self) -> PackedTable | None:
        """`packed`, of a table."""
        assert not isinstance(self.packed, GroupedWeight)
        return self.packed

    @property
    def can_lower(self) -> bool:
        """See Layer. Buffers of programs have no room for padding."""
        return self.packed is not None and self.packed.is_unpadded and super().can_lower

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        """x: buffer of the input [M, in]. Returns that of the product, [M, out]."""
        assert self.packed is not None
        return builder.product(self.packed, x, builder.buffers.output(self.packed.out_features))

    def product(self, x: torch.Tensor, wide: bool = False) -> torch.Tensor:
        """[T, in] -> [T, out], with the bias unless another rank adds it. wide: the result is float32."""
        if self.packed is not None:
            return self.packed.multiply(x, wide)
        return linear(x, self.weight, self.bias if self.adds_bias else None, wide)
