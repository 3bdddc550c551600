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
from worker.layers.base import NamedTensors, Split, WeightOwner
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
        split: Split,
        taps: int,
        place: Placement,
        has_bias: bool = False,
        factors: torch.Tensor | None = None,
    ) -> None:
        """split: of the channels. factors: of what is convolved, [channels] float32 of this rank; None: 1."""
        super().__init__()
        self.factors, self.split = factors, split
        channels = split.num_held
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

    def __init__(self, num_heads: int, place: Placement) -> None:
        """num_heads: of all ranks."""
        super().__init__()
        self.split = Split(num_heads, (place.group.slice(num_heads),))
        self.log_decay, self.bias = (wide(place, self.split.num_held) for _ in range(2))
        self._decay: torch.Tensor | None = None

    def pack(self, forms: WeightForms) -> None:
        self._decay = self.decay()

    def decay(self) -> torch.Tensor:
        """[H] float32."""
        return self._decay if self._decay is not None else self.log_decay.exp()


class GatedHeadNorm(WeightOwner):
    """The weight of a gated norm of each head, one for all heads."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps, self.weight = eps, place.empty(width)


class GroupedNorm(WeightOwner):
    """A gated norm by group of values, or a gate without a norm."""

    def __init__(
        self,
        width: int,
        groups: int,
        eps: float,
        place: Placement,
        factor: float = 1.0,
        normed: bool = True,
    ) -> None:
        """width: of all groups together; groups: those of all ranks. factor: of the gate."""
        super().__init__()
        group, self.eps, self.factor = place.group, eps, factor
        self.spanned = group if normed and groups % group.size else None
        """Where a group has values of several ranks, each rank norms all values and takes its own."""
        self.local = group.slice(width)
        self.groups = groups if self.spanned is not None else max(1, groups // group.size)
        self.weight: torch.nn.Parameter | None = None
        if normed:
            self.split = None if self.spanned is not None else Split(width, (self.local,))
            self.weight = place.empty(width if self.spanned is not None else group.split(width))

    def forward(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x: [T, I] float32 and gate: [T, I], values of this rank -> [T, I] of the gate's dtype."""
        if self.spanned is None:
            return self._norm(x, gate)
        every = self._norm(self.spanned.gather_columns(x), self.spanned.gather_columns(gate))
        return every[:, self.local].contiguous()

    def _norm(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        return self.ops.grouped_norm(x, gate, self.weight, self.groups, self.eps, self.factor)


class GatedDeltaNet(StatefulPart):
    """The attention part of a block that keeps a state. C: channels; H heads of D values."""

    def __init__(
        self,
        projections: ColumnLinear,
        convolution: Convolution,
        rates: Rates,
        norm: GatedHeadNorm,
        delta_output: RowLinear,
        shape: DeltaShape,
    ) -> None:
        """projections: [T, E] -> [T, C + H * D + 2 * H]: what is convolved, z, b and a. shape: of this
        rank's heads."""
        super().__init__()
        self.projections, self.convolution, self.rates = projections, convolution, rates
        self.norm, self.delta_output, self.shape = norm, delta_output, shape
        self.state_spec = RowStateSpec(shape, convolution.weight.shape[2])

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        ops, taps, rates, norm = self.ops, self.convolution, self.rates, self.norm
        assert batch.spans is not None
        last, state, drafted, log = cache
        shape = self.shape
        sizes = shape.channels, shape.values, 2 * shape.value_heads
        convolved, z, gates = self.projections(x, batch).split_with_sizes(sizes, dim=1)
        mixed = ops.convolution(convolved, taps.by_tap(), taps.bias, last, batch.spans, drafted)
        scanned = ops.delta_rule(mixed, gates, rates.decay(), rates.bias, state, shape, batch.spans, log)
        return self.delta_output(ops.gated_norm(scanned, z, norm.weight, norm.eps), batch)


class MambaRates(NamedTensors):
    """How fast each head's state decays, the bias of its steps, and how much of its input passes by."""

    def __init__(self, num_heads: int, place: Placement, step_factor: float = 1.0) -> None:
        """num_heads: of all ranks."""
        super().__init__()
        self.step_factor, self.split = step_factor, Split(num_heads, (place.group.slice(num_heads),))
        self.log_decay, self.bias, self.skip = (wide(place, self.split.num_held) for _ in range(3))
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
        """projections: [T, E] -> [T, H * P + C + H]: the gate, what is convolved, and steps. shape: of this
        rank's heads and groups."""
        super().__init__()
        self.projections, self.convolution, self.rates = projections, convolution, rates
        self.norm, self.mamba_output, self.shape = norm, mamba_output, shape
        self.state_spec = RowStateSpec(shape, convolution.weight.shape[2])

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        assert batch.spans is not None
        ops, taps, rates, norm = self.ops, self.convolution, self.rates.values(), self.norm
        last, state, drafted, log = cache
        sizes = self.shape.values, self.shape.channels, self.shape.heads
        gate, convolved, steps = self.projections(x, batch).split_with_sizes(sizes, dim=1)
        mixed = ops.convolution(convolved, taps.by_tap(), taps.bias, last, batch.spans, drafted)
        scanned = ops.selective_scan(mixed, steps, rates, state, self.shape, batch.spans, log)
        return self.mamba_output(norm(scanned, gate), batch)


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
        keys_and_values, states = self._split(cache)
        scanned = self.mamba(x, batch, states)
        attended = self.attention(x, batch, keys_and_values, rotation)
        return self.ops.scaled_add(attended, scanned, self.factor)

    def _split(self, cache: LayerCache) -> tuple[LayerCache, LayerCache]:
        """Returns the tensors of attention and those of the scan."""
        states = self.mamba.state_spec.num_tensors
        return cache[:-states], cache[-states:]
