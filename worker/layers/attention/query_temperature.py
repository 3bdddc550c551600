"""Temperature tuning of attention: queries grow with their position, in layers without rotary positions.

    q'[p] = q[p] * (1 + scale * log(1 + floor((p + 1) / floor_scale)))

Source: Llama 4, after https://arxiv.org/abs/2501.19399. Factors are numbers of a table, one per level
floor((p + 1) / floor_scale), so that a position has the same factor in every step.
"""

import numpy as np
import torch

from kernels.api import InputBatch, Rotation
from worker.config.decoder import TemperatureConfig
from worker.layers.attention.rotary import Angles


class QueryTemperature(Angles):
    """The factors of a model. A layer without parameters: a rotation by 0 whose cosines are the factors."""

    queries_only = True

    def __init__(
        self, config: TemperatureConfig, max_position: int, head_dim: int, device: torch.device
    ) -> None:
        super().__init__()
        self._floor_scale, self._head_dim = config.floor_scale, head_dim
        levels = np.arange(max_position // config.floor_scale + 1, dtype=np.float64)
        factors = (1 + config.scale * np.log1p(levels)).astype(np.float32)
        self._factors = torch.from_numpy(factors).to(device)

    def angles(self, batch: InputBatch) -> Rotation:
        """Returns the factors of this step as cosines."""
        level = (batch.positions + 1) // self._floor_scale
        cos = self._factors[level][:, None].expand(-1, self._head_dim).contiguous()
        return Rotation(cos, torch.zeros_like(cos), None, self.ops, self.queries_only)
