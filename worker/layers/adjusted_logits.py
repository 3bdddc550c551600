"""What some families do with logits before anything else."""

import torch

from kernels.cpu.elementwise.row_kernels import RowKernels, adjust_logits_record, row_grain
from kernels.ops.logits.adjust_logits import adjust_logits
from worker.layers.base import Layer
from worker.lowering.builder import ProgramBuilder


class AdjustedLogits(Layer):
    """A factor, and a soft cap where there is one; see kernels.ops.logits.adjust_logits."""

    def __init__(self, vocab_size: int, scale: float, cap: float | None) -> None:
        super().__init__()
        self.vocab_size, self.scale, self.cap = vocab_size, scale, cap
        self.kernels: RowKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Computes with the compiled kernel if the vocabulary fits."""
        self.kernels = kernels if self.vocab_size >= 16 else None

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None

    def forward(self, logits: torch.Tensor) -> torch.Tensor:
        """[A, V] float32 -> [A, V]."""
        if self.kernels is not None:
            return self.kernels.adjust_logits(logits, self.scale, self.cap)
        return adjust_logits(logits, self.scale, self.cap)

    def lower(self, builder: ProgramBuilder, logits: torch.Tensor) -> torch.Tensor:
        out = builder.buffers.shared("adjusted logits", self.vocab_size, torch.float32)
        record = adjust_logits_record(logits, out, self.scale, self.cap)
        builder.put(builder.rows.logits, record, row_grain(self.vocab_size), repeatable=True)
        return out
