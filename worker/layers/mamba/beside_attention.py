"""Attention and a Mamba-2 layer side by side, as each layer of Falcon-H1 has them: factor * attention(x) +
scan(x)."""

import torch

from kernels.api import InputBatch, KVCacheSpec, LayerCache, Rotation, RowStateSpec
from worker.layers.attention.self_attention import SelfAttention, SideBySide
from worker.layers.mamba.mamba2 import Mamba2


class AttentionBesideMamba2(SideBySide):
    """Both read the same input."""

    def __init__(self, attention: SelfAttention, mamba: Mamba2, factor: float) -> None:
        """factor: of attention."""
        super().__init__()
        self.attention, self.mamba, self.factor = attention, mamba, factor

    @property
    def specs(self) -> tuple[KVCacheSpec, RowStateSpec]:
        return self.attention.attention.spec, self.mamba.state_spec

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        keys_and_values, states = self._split(cache)
        scanned = self.mamba(x, batch, states)
        attended = self.attention(x, batch, keys_and_values, rotation)
        return self.ops.scaled_add(attended, scanned, self.factor)

    def _split(self, cache: LayerCache) -> tuple[LayerCache, LayerCache]:
        """Returns the tensors of attention and those of the scan."""
        states = self.mamba.state_spec.num_tensors
        return cache[:-states], cache[-states:]
