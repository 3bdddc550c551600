"""Norms over the hidden size, or over the size of a head."""

from abc import ABC, abstractmethod

import torch

from worker.layers.base import Layer, WeightOwner
from worker.parallel import Placement


class Norm(WeightOwner, ABC):
    """A norm over the last dimension of [..., E]."""

    residual_scale = 1.0
    """Of what is added to the residual stream."""

    @abstractmethod
    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns norm(x + residual) and x + residual. residual: None stands for zeros."""


class RMSNorm(Norm):
    """Root-mean-square norm, by itself or after the residual addition."""

    def __init__(
        self,
        width: int,
        eps: float,
        place: Placement,
        offset: float = 0.0,
        residual_scale: float = 1.0,
        order: tuple[int, ...] = (),
    ) -> None:
        """offset: is added to the weight. residual_scale: of what is added to the residual stream. order: see
        Weight."""
        super().__init__()
        self.eps, self.offset, self.residual_scale, self.order = eps, offset, residual_scale, order
        self.weight = place.empty(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        return self.ops.rms_norm(x, self.weight, self.eps, self.offset)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self(x), x
        return self.ops.add_rms_norm(x, residual, self.weight, self.eps, self.offset, self.residual_scale)


class NormOfAllHeads(RMSNorm):
    """Root-mean-square norm over the queries, or the keys, of all ranks, of which each has some heads."""

    def __init__(
        self,
        num_heads: int,
        head_dim: int,
        eps: float,
        place: Placement,
        offset: float,
        order: tuple[int, ...],
    ) -> None:
        """num_heads: of all ranks. offset, order: see RMSNorm."""
        super().__init__(num_heads * head_dim, eps, place, offset, order=order)
        self.group, self.num_heads = place.group, num_heads
        held = place.group.units(num_heads)
        self.local = slice(held.start * head_dim, held.stop * head_dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[T, K * D] -> [T, K * D], K heads of this rank."""
        every = self.group.gather_columns(x, self.num_heads)
        return super().forward(every)[:, self.local]


class UnitNorm(Layer):
    """Root-mean-square norm of heads without a parameter: its weight is 1."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps, self.offset = eps, 0.0
        self.weight = torch.ones(width, dtype=place.dtype, device=place.device)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., D] -> [..., D]."""
        return self.ops.rms_norm(x, self.weight, self.eps, self.offset)


HeadNormLayers = tuple[RMSNorm, RMSNorm] | tuple[UnitNorm, UnitNorm]
"""The norms of queries and of keys; NormOfAllHeads: before they are attended with."""


class NoNorm(Norm):
    """In place of the norm before a model's first part, where the embedding has one."""

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        assert residual is None, "it is of the first block"
        return x, x


class LayerNorm(Norm):
    """Layer norm with a weight and a bias, with a weight alone, or without parameters."""

    def __init__(
        self, width: int, eps: float, place: Placement, affine: bool = True, has_bias: bool = True
    ) -> None:
        super().__init__()
        self.eps, self.weight, self.bias = eps, None, None
        if affine:
            self.weight = place.empty(width)
            zeros = torch.zeros(width, dtype=place.dtype, device=place.device)
            self.bias = place.empty(width) if has_bias else zeros

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., E] -> [..., E]."""
        return self.ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
        if residual is None:
            return self(x), x
        return self.ops.add_layer_norm(x, residual, self.weight, self.bias, self.eps)
