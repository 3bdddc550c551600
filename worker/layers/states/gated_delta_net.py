"""A gated delta net (arXiv 2412.06464, as Qwen3-Next has it): linear attention, which keeps a state per row.

    m[t]       = silu(convolution over the last tokens of W x)     queries, keys and values of all heads
    o[t]       = the gated delta rule over m, with gates b and a   kernels.ops.states.delta_rule
    out[t]     = O [norm(o[t, h]) * silu(z[t, h])]                 heads side by side

W, z, b and a come of one projection. A row goes token by token, in decoding and in prompts alike: so a token
has the same bits however its row is cut into steps.
"""

from collections.abc import Iterator

import torch

from kernels.api import DeltaShape, DeltaStateSpec, InputBatch, LayerCache, Rotation, WeightForms
from worker.layers.attention.self_attention import StatefulPart
from worker.layers.base import Weight, WeightOwner
from worker.layers.linear import ColumnLinear, RowLinear
from worker.layers.states.convolution import Convolution, wide
from worker.parallel import Placement


class Rates(WeightOwner):
    """How fast each head's state decays, and the bias of the gate that changes it."""

    def __init__(self, heads: int, place: Placement) -> None:
        super().__init__()
        self.log_decay, self.bias = wide(place, heads), wide(place, heads)
        self._decay: torch.Tensor | None = None

    def pack(self, forms: WeightForms) -> None:
        self._decay = self.decay()

    def decay(self) -> torch.Tensor:
        """[H] float32."""
        return self._decay if self._decay is not None else self.log_decay.exp()

    def weights(self, *names: str) -> Iterator[Weight]:
        """The names of both tensors; see WeightOwner."""
        log_decay, bias = names
        yield Weight(log_decay, tuple(self.log_decay.shape), self.log_decay)
        yield Weight(bias, tuple(self.bias.shape), self.bias)


class GatedNorm(WeightOwner):
    """The weight of the norm of each head's output."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps, self.weight = eps, place.empty(width)

    def weights(self, *names: str) -> Iterator[Weight]:
        (name,) = names
        yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)


class GatedDeltaNet(StatefulPart):
    """The attention part of a block that keeps a state. C: channels; H heads of D values."""

    def __init__(
        self,
        projections: ColumnLinear,
        convolution: Convolution,
        rates: Rates,
        norm: GatedNorm,
        delta_output: RowLinear,
        shape: DeltaShape,
    ) -> None:
        """projections: [T, E] -> [T, C + H * D + 2 * H]: what is convolved, z, b and a."""
        super().__init__()
        self.projections, self.convolution, self.rates = projections, convolution, rates
        self.norm, self.delta_output, self.shape = norm, delta_output, shape
        self.state_spec = DeltaStateSpec(shape, convolution.weight.shape[2])

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        assert batch.spans is not None
        ops, taps, rates, norm = self.ops, self.convolution, self.rates, self.norm
        last, state, drafted, log = cache
        convolved, z, gates = self._split(self.projections(x, batch))
        mixed = ops.convolution(convolved, taps.by_tap(), taps.bias, last, batch.spans, drafted)
        scanned = ops.delta_rule(mixed, gates, rates.decay(), rates.bias, state, self.shape, batch.spans, log)
        return self.delta_output(ops.gated_norm(scanned, z, norm.weight, norm.eps), batch)

    def _split(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns views of what is convolved, [T, C], of z, [T, H * D], and of b and a, [T, 2 * H]."""
        shape = self.shape
        sizes = shape.channels, shape.values, 2 * shape.value_heads
        convolved, z, gates = projected.split_with_sizes(sizes, dim=1)
        return convolved, z, gates
