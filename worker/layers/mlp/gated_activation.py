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
    """f(factor * gate) * up. It has no parameters."""

    def __init__(self, name: str, factor: float = 1.0) -> None:
        """name: of f, as in kernels.ops.layers.activation."""
        super().__init__()
        self.name, self.factor = name, factor
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Computes with a compiled kernel if there is one."""
        known = _SILU if self.factor != 1 else _SILU + _GELU_TANH
        self.kernels = kernels if self.name in known else None

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I], gate before up -> [T, I]."""
        if self.kernels is not None and self.name in _SILU:
            return self.kernels.gated_silu(gate_up, self.factor)
        if self.kernels is not None:
            return self.kernels.gated_gelu(gate_up)
        if self.factor != 1:
            gate, up = gate_up.chunk(2, dim=1)
            gate_up = torch.cat((gate * self.factor, up), dim=1)
        return gated_activation(gate_up, self.name)

    def lower(self, builder: ProgramBuilder, gate_up: torch.Tensor, out: torch.Tensor) -> int:
        """gate_up: buffer [M, 2 * I], out: [M, I]. Returns the index of the record."""
        width = out.shape[1]
        where = {"gate_up": gate_up.data_ptr(), "out": out.data_ptr(), "width": width}
        grain = row_grain(width)
        if self.name in _SILU:
            silu = GatedSiluRecord(**where, factor=self.factor)
            return builder.put(builder.rows.silu, silu, grain, repeatable=True)
        return builder.put(builder.rows.gelu, GatedGeluRecord(**where), grain, repeatable=True)
