"""A gated delta net (arXiv 2412.06464, as Qwen3-Next has it): linear attention, which keeps a state per row.

    m[t]       = silu(convolution over the last tokens of W x)     queries, keys and values of all heads
    o[t]       = the gated delta rule over m, with gates b and a   kernels.ops.delta.delta_rule
    out[t]     = O [norm(o[t, h]) * silu(z[t, h])]                 heads side by side

W, z, b and a come of one projection. A row goes token by token, in decoding and in prompts alike: so a token
has the same bits however its row is cut into steps.
"""

from collections.abc import Iterator

import torch

from kernels.cpu.delta.delta_kernels import DeltaKernels, delta_kernels, gated_norm_record
from kernels.cpu.delta.records import ConvolutionRecord, DeltaRuleRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.ops.delta.convolution import convolution
from kernels.ops.delta.delta_rule import DeltaShape, delta_rule
from kernels.ops.delta.gated_norm import gated_norm
from kernels.triton.states.device_spans import DeviceSpans
from worker.attention.plan import LayerCache, Rotation
from worker.attention.row_state import DeltaStateSpec
from worker.layers.attention.self_attention import StatefulPart
from worker.layers.base import Weight
from worker.layers.delta.parameters import Convolution, StateParameters, wide
from worker.layers.linear import ColumnLinear, RowLinear
from worker.lowering.builder import ProgramBuilder
from worker.lowering.rotation import LoweredRotation
from worker.lowering.spans import follow_spans
from worker.model_input import InputBatch
from worker.parallel import Placement

_CONVOLUTION_SPANS = ConvolutionRecord.word("spans")
_RULE_SPANS = DeltaRuleRecord.word("spans")


class Rates(StateParameters):
    """How fast each head's state decays, and the bias of the gate that changes it."""

    def __init__(self, heads: int, place: Placement) -> None:
        super().__init__()
        self.log_decay, self.bias = wide(place, heads), wide(place, heads)
        self._decay: torch.Tensor | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Keeps the decay where records can point at it."""
        self._decay = self.decay()

    def decay(self) -> torch.Tensor:
        """[H] float32."""
        return self._decay if self._decay is not None else self.log_decay.exp()

    def weights(self, *names: str) -> Iterator[Weight]:
        """The names of both tensors; see WeightOwner."""
        log_decay, bias = names
        yield Weight(log_decay, tuple(self.log_decay.shape), self.log_decay)
        yield Weight(bias, tuple(self.bias.shape), self.bias)


class GatedNorm(StateParameters):
    """The weight of the norm of each head's output."""

    def __init__(self, width: int, eps: float, place: Placement) -> None:
        super().__init__()
        self.eps, self.weight = eps, place.empty(width)

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
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
        self.kernels: DeltaKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Convolves, scans, norms and gates with the compiled kernels."""
        self.kernels = delta_kernels(kernels.dtype)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        assert batch.spans is not None
        projected, (last, state, drafted, log) = self.projections(x, batch), cache
        convolved, z, gates = self._split(projected)
        if isinstance(batch.spans, DeviceSpans):
            return self.delta_output(self._on_device(convolved, z, gates, batch.spans, cache), batch)
        weight, bias = self.convolution.by_tap(), self.convolution.bias
        rates = self.rates.decay(), self.rates.bias
        norm = self.norm.weight, self.norm.eps
        if self.kernels is None:
            mixed = convolution(convolved, weight, bias, last, batch.spans, drafted)
            scanned = delta_rule(mixed, gates, *rates, state, self.shape, batch.spans, log)
            return self.delta_output(gated_norm(scanned, z, *norm), batch)
        mixed = self.kernels.convolution(convolved, weight, bias, last, batch.spans, drafted)
        scanned = self.kernels.delta_rule(mixed, gates, *rates, state, self.shape, batch.spans, log)
        return self.delta_output(self.kernels.gated_norm(scanned, z, *norm), batch)

    def _on_device(
        self,
        convolved: torch.Tensor,
        z: torch.Tensor,
        gates: torch.Tensor,
        spans: DeviceSpans,
        cache: LayerCache,
    ) -> torch.Tensor:
        """What is projected back, [T, H * D], on a CUDA device. convolved, z, gates: of _split()."""
        from kernels.triton.states import norms as triton_norms
        from kernels.triton.states.convolution import convolution as convolve
        from kernels.triton.states.delta_rule import delta_rule as learn

        last, state, *_ = cache
        taps, rates = self.convolution, self.rates
        mixed = convolve(convolved, taps.by_tap(), taps.bias, last, spans)
        scanned = learn(mixed, gates, rates.decay(), rates.bias, state, self.shape, spans)
        return triton_norms.gated_norm(scanned, z, self.norm.weight, self.norm.eps)

    def _split(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns views of what is convolved, [T, C], of z, [T, H * D], and of b and a, [T, 2 * H]."""
        shape = self.shape
        sizes = shape.channels, shape.values, 2 * shape.value_heads
        convolved, z, gates = projected.split_with_sizes(sizes, dim=1)
        return convolved, z, gates

    @property
    def can_lower(self) -> bool:
        """Parts with weights alone have no lower() of their own."""
        linear = self.projections, self.delta_output
        return self.kernels is not None and all(part.can_lower for part in linear)

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> torch.Tensor:
        assert self.kernels is not None
        kernels, shape, buffers = self.kernels, self.shape, builder.buffers
        last, state, drafted, log = cache
        convolved, z, gates = self._split(self.projections.lower(builder, x))
        weight, rates = self.convolution.by_tap(), (self.rates.decay(), self.rates.bias)
        mixed = buffers.output(shape.channels, torch.float32)
        record = kernels.convolution_record(convolved, weight, self.convolution.bias, last, mixed, drafted)
        convolving = builder.put(kernels.convolve, record, 1)
        scanned = buffers.output(shape.values, torch.float32)
        rule = kernels.delta_record(mixed, gates, rates, state, scanned, shape, log)
        learning = builder.put(kernels.learn, rule, 1)
        out = buffers.output(shape.values)
        normed = gated_norm_record(scanned, z, self.norm.weight, out, self.norm.eps)
        builder.put(kernels.norm, normed, row_grain(shape.values))
        follow_spans(
            builder,
            (convolving, _CONVOLUTION_SPANS, kernels.blocks(weight)),
            (learning, _RULE_SPANS, shape.value_heads),
        )
        return self.delta_output.lower(builder, out)
