"""Feed-forward layers, plain and gated."""

from abc import ABC, abstractmethod

import torch

from kernels.cpu.elementwise.row_kernels import ACTIVATIONS, RowKernels, activation_record, row_grain
from kernels.ops.layers.activation import activation
from worker.layers.base import Layer
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.mlp.gated_activation import GatedActivation
from worker.lowering.builder import ProgramBuilder
from worker.model_input import InputBatch


class FeedForward(Layer, ABC):
    """A block's second part: an MLP, or experts in its place."""

    @abstractmethod
    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""

    @abstractmethod
    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        pass


class MLP(FeedForward):
    """down(f(up(x)))."""

    def __init__(self, up: ColumnLinear, down: RowLinear, activation_name: str) -> None:
        super().__init__()
        self.up, self.down, self.activation = up, down, activation_name
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Computes the activation with the compiled kernel if it has this one."""
        self.kernels = kernels if self.activation in ACTIVATIONS else None

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None and super().can_lower

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        x = self.up(x, batch)
        if self.kernels is not None:
            return self.down(self.kernels.activation(x, self.activation), batch)
        return self.down(activation(x, self.activation), batch)

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        x = self.up.lower(builder, x)
        activated = builder.buffers.output(x.shape[1])
        record = activation_record(x, activated, self.activation)
        builder.put(builder.rows.activate, record, row_grain(x.shape[1]), repeatable=True)
        return self.down.lower(builder, activated)


class GatedMLP(FeedForward):
    """down(f(factor * gate(x)) * up(x))."""

    def __init__(
        self, gate_up: ColumnLinear, down: RowLinear, activation_name: str, factor: float = 1.0
    ) -> None:
        super().__init__()
        self.gate_up, self.down = gate_up, down
        self.activation = GatedActivation(activation_name, factor)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        return self.down(self.activation(self.gate_up(x, batch)), batch)

    def lower(self, builder: ProgramBuilder, x: torch.Tensor) -> torch.Tensor:
        gated = builder.buffers.output(self.down.in_share)
        self.activation.lower(builder, self.gate_up.lower(builder, x), gated)
        return self.down.lower(builder, gated)
