"""Layers that keep a state per row in place of keys and values (kernels.ops.states).

A gated delta net (arXiv 2412.06464, as Qwen3-Next has it):

    m[t]       = silu(convolution over the last tokens of W x)     queries, keys and values of all heads
    o[t]       = the gated delta rule over m, with gates b and a   kernels.ops.states.delta_rule
    out[t]     = O [norm(o[t, h]) * silu(z[t, h])]                 heads side by side

W, z, b and a come of one projection.

A Mamba-2 layer: projections, a convolution over the last tokens, the selective scan, a gated norm of outputs
by group, and the projection back. In Falcon-H1 each layer has attention beside it: factor * attention(x) +
scan(x).

A row goes token by token, in decoding and in prompts alike: so a token has the same bits however its row is
cut into steps.
"""

import torch

from kernels.api import (
    DeltaShape,
    InputBatch,
    KVCacheSpec,
    LayerCache,
    MambaShape,
    Rotation,
    RowStateSpec,
    ScanRates,
    WeightForms,
)
from worker.layers.attention.self_attention import SelfAttention, SideBySide, StatefulPart
from worker.layers.base import NamedTensors, WeightOwner
from worker.layers.linear import ColumnLinear, RowLinear
from worker.parallel import Placement


def wide(place: Placement, *shape: int) -> torch.nn.Parameter:
    """A parameter that is float32 in every dtype."""
    return torch.nn.Parameter(
        torch.empty(shape, dtype=torch.float32, device=place.device), requires_grad=False
    )


class Convolution(WeightOwner):
    """The weights of a convolution by channel, and its bias: zeros where the checkpoint has none."""

    def __init__(
        self,
        channels: int,
        taps: int,
        place: Placement,
        has_bias: bool = False,
        factors: torch.Tensor | None = None,
    ) -> None:
        """factors: of what is convolved, [channels] float32; None: 1."""
        super().__init__()
        self.factors = factors
        self.weight = wide(place, channels, 1, taps)
        self.bias = wide(place, channels) if has_bias else torch.zeros(channels, device=place.device)
        self._by_tap: torch.Tensor | None = None

    def pack(self, forms: WeightForms) -> None:
        self._by_tap = self.by_tap()

    def by_tap(self) -> torch.Tensor:
        """[taps, C] float32."""
        if self._by_tap is not None:
            return self._by_tap
        weight = self.weight[:, 0].t()
        return (weight if self.factors is None else weight * self.factors).contiguous()


class Rates(NamedTensors):
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


class GroupedNorm(WeightOwner):
    """The weight of a gated norm by group, or of each head with one weight for all; or a gate without a
    norm."""

    def __init__(
        self,
        width: int,
        groups: int,
        eps: float,
        place: Placement,
        factor: float = 1.0,
        normed: bool = True,
    ) -> None:
        """width: of all groups together. factor: of the gate."""
        super().__init__()
        self.groups, self.eps, self.factor = groups, eps, factor
        self.weight = place.empty(width) if normed else None


class GatedDeltaNet(StatefulPart):
    """The attention part of a block that keeps a state. C: channels; H heads of D values."""

    def __init__(
        self,
        projections: ColumnLinear,
        convolution: Convolution,
        rates: Rates,
        norm: GroupedNorm,
        delta_output: RowLinear,
        shape: DeltaShape,
    ) -> None:
        """projections: [T, E] -> [T, C + H * D + 2 * H]: what is convolved, z, b and a."""
        super().__init__()
        self.projections, self.convolution, self.rates = projections, convolution, rates
        self.norm, self.delta_output, self.shape = norm, delta_output, shape
        self.state_spec = RowStateSpec(shape, convolution.weight.shape[2])

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        ops, taps, rates, norm = self.ops, self.convolution, self.rates, self.norm
        assert batch.spans is not None and norm.weight is not None
        last, state, drafted, log = cache
        shape = self.shape
        sizes = shape.channels, shape.values, 2 * shape.value_heads
        convolved, z, gates = self.projections(x, batch).split_with_sizes(sizes, dim=1)
        mixed = ops.convolution(convolved, taps.by_tap(), taps.bias, last, batch.spans, drafted)
        scanned = ops.delta_rule(mixed, gates, rates.decay(), rates.bias, state, shape, batch.spans, log)
        return self.delta_output(ops.gated_norm(scanned, z, norm.weight, norm.eps), batch)


class MambaRates(NamedTensors):
    """How fast each head's state decays, the bias of its steps, and how much of its input passes by."""

    def __init__(self, heads: int, place: Placement, step_factor: float = 1.0) -> None:
        super().__init__()
        self.step_factor = step_factor
        self.log_decay, self.bias, self.skip = (wide(place, heads) for _ in range(3))
        self._packed: ScanRates | None = None

    def pack(self, forms: WeightForms) -> None:
        self._packed = self.values()

    def values(self) -> ScanRates:
        """As the scan takes them."""
        return self._packed or ScanRates.of(self.log_decay.exp(), self.bias, self.skip, self.step_factor)


class Mamba2(StatefulPart):
    """The first part of a block that scans. C: channels that are convolved; H heads of P values."""

    def __init__(
        self,
        projections: ColumnLinear,
        convolution: Convolution,
        rates: MambaRates,
        norm: GroupedNorm,
        mamba_output: RowLinear,
        shape: MambaShape,
    ) -> None:
        """projections: [T, E] -> [T, H * P + C + H]: the gate, what is convolved, and steps."""
        super().__init__()
        self.projections, self.convolution, self.rates = projections, convolution, rates
        self.norm, self.mamba_output, self.shape = norm, mamba_output, shape
        self.state_spec = RowStateSpec(shape, convolution.weight.shape[2])

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        assert batch.spans is not None
        ops, taps, rates, norm = self.ops, self.convolution, self.rates.values(), self.norm
        last, state, drafted, log = cache
        sizes = self.shape.values, self.shape.channels, self.shape.heads
        gate, convolved, steps = self.projections(x, batch).split_with_sizes(sizes, dim=1)
        mixed = ops.convolution(convolved, taps.by_tap(), taps.bias, last, batch.spans, drafted)
        scanned = ops.selective_scan(mixed, steps, rates, state, self.shape, batch.spans, log)
        normed = ops.grouped_norm(scanned, gate, norm.weight, norm.groups, norm.eps, norm.factor)
        return self.mamba_output(normed, batch)


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
