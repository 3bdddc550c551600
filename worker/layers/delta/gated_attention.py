"""Self-attention whose output is gated by the token itself: output(attention(qkv(x)) * sigmoid(gate(x)))."""

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.layers.attention.attention import Attention
from worker.layers.attention.self_attention import SelfAttention
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.norm import HeadNormLayers


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

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        attended = self.attention(self.qkv(x, batch), batch, cache, rotation, self.norms)
        gate = self.gate(x, batch)
        gated = self.ops.output_gate(attended, gate)
        return self.output(gated, batch)
