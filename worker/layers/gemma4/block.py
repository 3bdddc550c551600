"""The block of Gemma 4."""

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.layers.base import Layer
from worker.layers.gemma4.attention import NormedValuesAttention, SharedAttention
from worker.layers.gemma4.mixture import Mixture
from worker.layers.gemma4.per_layer import PerLayerPart, StoredTensor
from worker.layers.mlp.mlp import GatedMLP
from worker.layers.norm import RMSNorm


class Gemma4Block(Layer):
    """Attention and feed-forward, each between two norms; what the layer has of each token; a factor of the
    whole stream."""

    def __init__(
        self,
        attention: tuple[RMSNorm, NormedValuesAttention | SharedAttention, RMSNorm],
        mlp: tuple[RMSNorm, GatedMLP, RMSNorm],
        mixture: Mixture | None,
        per_layer: PerLayerPart | None,
        factor: StoredTensor,
    ) -> None:
        """attention, mlp: with the norms before and behind them. factor: [1]."""
        super().__init__()
        self.attention_norm, self.attention, self.attention_output_norm = attention
        self.mlp_norm, self.mlp, self.mlp_output_norm = mlp
        self.mixture, self.per_layer, self.factor = mixture, per_layer, factor

    def forward(
        self,
        x: torch.Tensor,
        inputs: torch.Tensor | None,
        batch: InputBatch,
        cache: LayerCache,
        rotation: Rotation,
    ) -> torch.Tensor:
        """x: [T, E], the residual stream. inputs: [T, P], of this layer. Returns the stream."""
        attended = self.attention(self.attention_norm(x), batch, cache, rotation)
        x = x + self.attention_output_norm(attended)
        fed = self.mlp(self.mlp_norm(x), batch)
        if self.mixture is not None:
            fed = self.mixture(fed, x, batch)
        x = x + self.mlp_output_norm(fed)
        if self.per_layer is not None and inputs is not None:
            x = x + self.per_layer(x, inputs, batch)
        return x * self.factor.weight
