"""Blocks of Gemma 4's tower: norms around both parts, norms of queries, keys and values of each head, and
products of which inputs and outputs may be clipped.

    clipped(x) = min(max(W @ min(max(x, a), b), c), d)

a to d are numbers of each product, so that those of one input are not fused.
"""

import torch

from kernels.api import InputBatch, LayerCache, Rotation
from worker.config.vision import TowerConfig
from worker.layers.attention.self_attention import AttentionPart
from worker.layers.base import Layer, NamedTensors
from worker.layers.block import AroundNormBlock
from worker.layers.linear import ColumnLinear, Part, order_of_heads
from worker.layers.mlp import FeedForward, GatedActivation
from worker.layers.norm import RMSNorm, UnitNorm
from worker.parallel import Placement


class Bounds(NamedTensors):
    """The least and the most of what a product reads, and of what it makes."""

    def __init__(self, place: Placement) -> None:
        super().__init__()
        self.input_min, self.input_max, self.output_min, self.output_max = (place.empty() for _ in range(4))


class ClippedLinear(Layer):
    """A product, whose inputs and outputs are clipped, or not."""

    def __init__(
        self, inputs: int, outputs: int, clipped: bool, place: Placement, order: tuple[int, ...] = ()
    ) -> None:
        """order: see Part."""
        super().__init__()
        self.linear = ColumnLinear(inputs, (Part(outputs, slice(0, outputs), order),), False, place)
        self.bounds = Bounds(place) if clipped else None

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        """[N, in] -> [N, out]."""
        if (bounds := self.bounds) is None:
            return self.linear(x, batch)
        x = self.linear(x.clamp(bounds.input_min, bounds.input_max), batch)
        return x.clamp(bounds.output_min, bounds.output_max)


class HeadNormsAttention(AttentionPart):
    """Attention in which all patches of an image see one another, with norms of each head; scores are not
    scaled. A half of each head turns with the column of a patch, the other one with its row."""

    def __init__(self, config: TowerConfig, place: Placement) -> None:
        super().__init__()
        width, heads, size, eps = config.hidden_size, config.num_heads, config.head_dim, config.norm_eps
        # Pairs of values turn that stand a quarter of a head apart; here they stand half of one apart.
        part = range(size // 4)
        order = tuple(first * size // 4 + at for first in (2, 0, 3, 1) for at in part)
        orders = order_of_heads(order, heads), order_of_heads(order, heads), ()
        self.query, self.key, self.value = (
            ClippedLinear(width, width, config.clipped, place, each) for each in orders
        )
        self.query_norm, self.key_norm = (RMSNorm(size, eps, place, order=order) for _ in range(2))
        self.value_norm = UnitNorm(size, eps, place)
        self.output = ClippedLinear(width, width, config.clipped, place)
        self._shape = heads, size

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        assert rotation is not None, "it has positions by row and column"
        query, key, value = (
            part(x, batch).view(len(x), *self._shape) for part in (self.query, self.key, self.value)
        )
        query, key = rotation(self.query_norm(query)), rotation(self.key_norm(key))
        attended = self.ops.full_attention(query, key, self.value_norm(value), 1.0)
        return self.output(attended.flatten(1), batch)


class ClippedMLP(FeedForward):
    """down(f(gate(x)) * up(x))."""

    def __init__(self, config: TowerConfig, place: Placement) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.gate, self.up = (ClippedLinear(width, inner, config.clipped, place) for _ in range(2))
        self.activation = GatedActivation(config.activation)
        self.down = ClippedLinear(inner, width, config.clipped, place)

    def forward(self, x: torch.Tensor, batch: InputBatch) -> torch.Tensor:
        gate_up = torch.cat((self.gate(x, batch), self.up(x, batch)), dim=1)
        return self.down(self.activation(gate_up), batch)


def block(config: TowerConfig, place: Placement) -> AroundNormBlock:
    """Returns a block; its parts are made in the order in which it uses them."""

    def norm() -> RMSNorm:
        return RMSNorm(config.hidden_size, config.norm_eps, place)

    attending = norm(), HeadNormsAttention(config, place), norm()
    return AroundNormBlock(*attending, norm(), ClippedMLP(config, place), norm())
