"""A Mamba-2 layer: a state per row in place of keys and values (kernels.ops.mamba).

Projections, a convolution over the last tokens, the selective scan, a gated norm of its outputs by group, and
the projection back. A row goes token by token, in decoding and in prompts alike: so a token has the same bits
however its row is cut into steps.
"""

from collections.abc import Iterator

import torch

from kernels.cpu.delta.records import ConvolutionRecord
from kernels.cpu.elementwise.row_kernels import RowKernels, row_grain
from kernels.cpu.mamba.mamba_kernels import MambaKernels, grouped_norm_record, mamba_kernels
from kernels.cpu.mamba.records import SelectiveScanRecord
from kernels.ops.delta.convolution import convolution
from kernels.ops.mamba.grouped_norm import grouped_norm
from kernels.ops.mamba.selective_scan import MambaShape, ScanRates, selective_scan
from kernels.triton.states.device_spans import DeviceSpans
from worker.attention.plan import LayerCache, Rotation
from worker.attention.row_state import MambaStateSpec
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
_SCAN_SPANS = SelectiveScanRecord.word("spans")


class MambaRates(StateParameters):
    """How fast each head's state decays, the bias of its steps, and how much of its input passes by."""

    def __init__(self, heads: int, place: Placement, step_factor: float = 1.0) -> None:
        super().__init__()
        self.step_factor = step_factor
        self.log_decay, self.bias, self.skip = (wide(place, heads) for _ in range(3))
        self._packed: ScanRates | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Keeps them where records can point at them."""
        self._packed = self.values()

    def values(self) -> ScanRates:
        """As the scan takes them."""
        return self._packed or ScanRates.of(self.log_decay.exp(), self.bias, self.skip, self.step_factor)

    def weights(self, *names: str) -> Iterator[Weight]:
        """The names of the three tensors; see WeightOwner."""
        for name, target in zip(names, (self.log_decay, self.bias, self.skip), strict=True):
            yield Weight(name, tuple(target.shape), target)


class GroupedNorm(StateParameters):
    """The weight of the gated norm, or a gate without a norm."""

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

    def weights(self, *names: str) -> Iterator[Weight]:
        """One name of the checkpoint's modules; see WeightOwner."""
        (name,) = names
        if self.weight is not None:
            yield Weight(f"{name}.weight", tuple(self.weight.shape), self.weight)


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
        self.state_spec = MambaStateSpec(shape, convolution.weight.shape[2])
        self.kernels: MambaKernels | None = None

    def use_kernels(self, kernels: RowKernels) -> None:
        """Convolves, scans and norms with the compiled kernels."""
        self.kernels = mamba_kernels(kernels.dtype)

    def forward(
        self, x: torch.Tensor, batch: InputBatch, cache: LayerCache, rotation: Rotation | None = None
    ) -> torch.Tensor:
        """[T, E] -> [T, E]."""
        assert batch.spans is not None
        spans, (last, state, drafted, log) = batch.spans, cache
        gate, convolved, steps = self._split(self.projections(x, batch))
        if isinstance(spans, DeviceSpans):
            return self.mamba_output(self._on_device(gate, convolved, steps, spans, cache), batch)
        weight, bias, rates = self.convolution.by_tap(), self.convolution.bias, self.rates.values()
        norm = self.norm.weight, self.norm.groups, self.norm.eps, self.norm.factor
        if self.kernels is None:
            mixed = convolution(convolved, weight, bias, last, spans, drafted)
            scanned = selective_scan(mixed, steps, rates, state, self.shape, spans, log)
            return self.mamba_output(grouped_norm(scanned, gate, *norm), batch)
        mixed = self.kernels.convolution(convolved, weight, bias, last, spans, drafted)
        scanned = self.kernels.selective_scan(mixed, steps, rates, state, self.shape, spans, log)
        return self.mamba_output(self.kernels.grouped_norm(scanned, gate, *norm), batch)

    def _on_device(
        self,
        gate: torch.Tensor,
        convolved: torch.Tensor,
        steps: torch.Tensor,
        spans: DeviceSpans,
        cache: LayerCache,
    ) -> torch.Tensor:
        """What is projected back, [T, H * P], on a CUDA device. gate, convolved, steps: of _split()."""
        from kernels.triton.states import norms as triton_norms
        from kernels.triton.states.convolution import convolution as convolve
        from kernels.triton.states.selective_scan import selective_scan as scan

        last, state, *_ = cache
        norm, taps = self.norm, self.convolution
        mixed = convolve(convolved, taps.by_tap(), taps.bias, last, spans)
        scanned = scan(mixed, steps, self.rates.values(), state, self.shape, spans)
        return triton_norms.grouped_norm(scanned, gate, norm.weight, norm.groups, norm.eps, norm.factor)

    def _split(self, projected: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns views of the gate, [T, H * P], of what is convolved, [T, C], and of steps, [T, H]."""
        sizes = self.shape.values, self.shape.channels, self.shape.heads
        gate, convolved, steps = projected.split_with_sizes(sizes, dim=1)
        return gate, convolved, steps

    @property
    def can_lower(self) -> bool:
        """Parts with weights alone have no lower() of their own."""
        linear = self.projections, self.mamba_output
        return self.kernels is not None and all(part.can_lower for part in linear)

    def lower(
        self,
        builder: ProgramBuilder,
        x: torch.Tensor,
        cache: LayerCache,
        rotation: LoweredRotation | None = None,
    ) -> torch.Tensor:
        assert self.kernels is not None
        kernels, shape, norm = self.kernels, self.shape, self.norm
        last, state, drafted, log = cache
        gate, convolved, steps = self._split(self.projections.lower(builder, x))
        weight, buffers = self.convolution.by_tap(), builder.buffers
        mixed = buffers.output(shape.channels, torch.float32)
        convolving = builder.put(
            kernels.convolve,
            kernels.convolution_record(convolved, weight, self.convolution.bias, last, mixed, drafted),
            1,
        )
        scanned, out = buffers.output(shape.values, torch.float32), buffers.output(shape.values)
        record = kernels.scan_record(mixed, steps, self.rates.values(), state, scanned, shape, log)
        scanning = builder.put(kernels.scan, record, 1)
        normed = grouped_norm_record(scanned, gate, norm.weight, out, norm.groups, norm.eps, norm.factor)
        builder.put(kernels.norm, normed, row_grain(shape.values))
        follow_spans(
            builder,
            (convolving, _CONVOLUTION_SPANS, kernels.blocks(weight)),
            (scanning, _SCAN_SPANS, shape.heads),
        )
        return self.mamba_output.lower(builder, out)
