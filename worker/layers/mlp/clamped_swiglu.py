"""The activation of gpt-oss's experts."""

from typing import TYPE_CHECKING

import torch

from kernels.cpu.elementwise.records import ClampedSwigluRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.ops.layers.clamped_swiglu import clamped_swiglu
from worker.layers.base import Layer
from worker.lowering.builder import ProgramBuilder

if TYPE_CHECKING:
    from kernels.cpu.compiler.records import Operation


class ClampedGate(Layer):
    """kernels.ops.layers.clamped_swiglu. It has no parameters."""

    def __init__(self, alpha: float, limit: float) -> None:
        super().__init__()
        self.alpha, self.limit = alpha, limit
        self.kernels: RowKernels | None = None
        self._operation: Operation[ClampedSwigluRecord] | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Computes with the compiled kernel."""
        from kernels.cpu.elementwise import clamped_swiglu as compiled  # compiles, the first time

        self.kernels = kernels
        wide = kernels.dtype == torch.float32
        self._operation = compiled.clamped_swiglu_float32 if wide else compiled.clamped_swiglu

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def forward(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I], gate before up -> [T, I]."""
        if self.kernels is None or self._operation is None:
            return clamped_swiglu(gate_up, self.alpha, self.limit)
        gate_up = gate_up.contiguous()
        out = gate_up.new_empty((len(gate_up), gate_up.shape[1] // 2))
        self.kernels.team.run_one(
            self._operation, len(out), self._record(gate_up, out), row_grain(out.shape[1])
        )
        return out

    def lower(self, builder: ProgramBuilder, gate_up: torch.Tensor, out: torch.Tensor) -> int:
        """gate_up: buffer [M, 2 * I], out: [M, I]. Returns the index of the record."""
        assert self._operation is not None
        grain = row_grain(out.shape[1])
        return builder.put(self._operation, self._record(gate_up, out), grain, repeatable=True)

    def _record(self, gate_up: torch.Tensor, out: torch.Tensor) -> ClampedSwigluRecord:
        return ClampedSwigluRecord(
            gate_up=gate_up.data_ptr(),
            out=out.data_ptr(),
            width=out.shape[1],
            alpha=self.alpha,
            limit=self.limit,
        )
