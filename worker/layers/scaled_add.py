"""Additions and factors that no norm takes along: scaled embeddings, and sums of a block's parts."""

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain, scaled_add_record
from worker.layers.base import Layer
from worker.lowering.builder import ProgramBuilder


class ScaledAdd(Layer):
    """x * factor + y. It has no parameters."""

    def __init__(self, width: int, factor: float = 1.0) -> None:
        super().__init__()
        self.width, self.factor = width, factor
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Adds with the compiled kernel."""
        self.kernels = kernels

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        """[T, E] and [T, E] or zeros -> [T, E]."""
        if self.kernels is not None:
            return self.kernels.scaled_add(x, y, self.factor)
        return x * self.factor if y is None else torch.add(y, x, alpha=self.factor)

    def lower(
        self, builder: ProgramBuilder, x: torch.Tensor, y: torch.Tensor | None, out: torch.Tensor
    ) -> torch.Tensor:
        """out: the buffer of the result, which may be that of x or of y. Returns it."""
        record = scaled_add_record(x, y, out, self.factor)
        builder.put(builder.rows.add, record, row_grain(self.width))
        return out
