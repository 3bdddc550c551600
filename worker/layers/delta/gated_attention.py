"""Self-attention whose output is gated by the token itself: output(attention(qkv(x)) * sigmoid(gate(x)))."""

import torch

from kernels.cpu.delta.delta_kernels import DeltaKernels, delta_kernels, output_gate_record
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from worker.attention.plan import LayerCache, Rotation
from worker.layers.attention.attention import Attention
from worker.layers.attention.self_attention import SelfAttention
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import HeadNormLayers
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.model_input import InputBatch


class GatedAttention(SelfAttention):
    """SelfAttention with a gate for each value of each head."""

    def __init__(
        self,
        qkv: ColumnLinear,
        gate: ColumnLinear,
        attention: Attention,
        output: RowLinear,
        norms: HeadNormLayers | None,
    ) -> None:
        """gate: [T, E] -> [T, H * D]."""
        super().__init__(qkv, attention, output, norms)
        self.gate = gate
        self.kernels: DeltaKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Gates with the compiled kernel."""
        self.kernels = delta_kernels(kernels.dtype)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        attended = self.attention(self.qkv(x, batch), batch, cache, rotation, self.norms)
        gate = self.gate(x, batch)
        if self.kernels is None:
            gated = (attended.float() * torch.sigmoid(gate.float())).to(attended.dtype)
        else:
            gated = self.kernels.output_gate(attended, gate)
        return self.output(gated, batch)

    @property
    def can_lower(self) -> bool:
        return self.kernels is not None and super().can_lower

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> torch.Tensor:
        assert self.kernels is not None
        attended = self.attention.lower(builder, self.qkv.lower(builder, x), cache, rotation, self.norms)
        gate = self.gate.lower(builder, x)
        out = builder.buffers.output(gate.shape[1])
        record = output_gate_record(attended, gate, out)
        builder.put(self.kernels.gate, record, row_grain(gate.shape[1]), repeatable=True)
        return self.output.lower(builder, out)
