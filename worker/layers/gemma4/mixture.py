"""Experts beside a feed-forward part, both of which read the residual stream."""

import torch

from kernels.api import InputBatch
from worker.config.experts import ExpertsConfig
from worker.layers.base import Layer
from worker.layers.experts.experts import Experts
from worker.layers.gemma4.per_layer import StoredTensor
from worker.layers.norm import RMSNorm, UnitNorm
from worker.parallel import Placement


class ScaledExperts(Experts):
    """Experts whose router has a norm of its own, and a factor for each expert."""

    def __init__(
        self, config: ExpertsConfig, width: int, activation: str, norm_eps: float, place: Placement
    ) -> None:
        super().__init__(config, width, activation, place)
        self.router_norm = UnitNorm(width, norm_eps, place)
        self.router_scale = StoredTensor((width,), place)
        self.expert_scale = StoredTensor((config.routing.num_experts,), place)
        self._root = width**-0.5

    def of_stream(self, x: torch.Tensor, stream: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[T, E] -> [T, E]. stream: what the router reads, [T, E]."""
        routed = self.router_norm(stream) * self.router_scale.weight * self._root
        weights, chosen = self.choose(routed)
        return self.mix(x, weights * self.expert_scale.weight.float()[chosen], chosen, batch)


class Mixture(Layer):
    """norm(mlp) + norm(experts(norm(x)))."""

    def __init__(
        self, mlp_norm: RMSNorm, input_norm: RMSNorm, experts: ScaledExperts, output_norm: RMSNorm
    ) -> None:
        super().__init__()
        self.mlp_norm, self.input_norm, self.experts = mlp_norm, input_norm, experts
        self.output_norm = output_norm

    def forward(self, fed: torch.Tensor, stream: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """fed: [T, E], of the feed-forward part. stream: [T, E], before it. Returns [T, E]."""
        mixed = self.experts.of_stream(self.input_norm(stream), stream, batch)
        return self.mlp_norm(fed) + self.output_norm(mixed)
