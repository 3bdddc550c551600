"""The activation between a gated product and the one behind it."""

import torch

from kernels.cpu.elementwise.records import GatedGeluRecord, GatedSiluRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.ops.layers.activation import gated_activation
from worker.layers.base import Layer
from worker.lowering.builder import ProgramBuilder

_SILU = ("silu", "swish")
_GELU_TANH = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh")


class GatedActivation(Layer):
    """f(gate) * up. It has no parameters."""

    def __init__(self, name: str) -> None:
        """name: of f, as in kernels.ops.layers.activation."""
        super().__init__()
        self.name = name
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Computes with a compiled kernel if there is one."""
        self.kernels = kernels if self.name in _SILU + _GELU_TANH else None

    @property
    def can_lower(self) -> bool:
        """See Layer."""
        return self.kernels is not None

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I], gate before up -> [T, I]."""
        if self.kernels is not None:
            gated = self.kernels.gated_silu if self.name in _SILU else self.kernels.gated_gelu
            return gated(gate_up)
        return gated_activation(gate_up, self.name)

    def lower(self, builder: ProgramBuilder, gate_up: torch.Tensor, out: torch.Tensor) -> int:
        """gate_up: buffer [M, 2 * I], out: [M, I]. Returns the index of the record."""
        width = out.shape[1]
        where = {"gate_up": gate_up.data_ptr(), "out": out.data_ptr(), "width": width}
        grain = row_grain(width)
        if self.name in _SILU:
            return builder.put(builder.rows.silu, GatedSiluRecord(**where), grain, repeatable=True)
        return builder.put(builder.rows.gelu, GatedGeluRecord(**where), grain, repeatable=True)
