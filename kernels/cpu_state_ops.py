"""The operations of layers that keep a state per row, by the CPU's compiled kernels; and how any record is
run."""

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch

from kernels.cpu.compiler.records import Operation, OperationRecord
from kernels.cpu.layer_kernels import StateKernels, state_kernels
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.states.records import (
    ConvolutionRecord,
    DeltaRuleRecord,
    GatedNormRecord,
    GroupedNormRecord,
    OutputGateRecord,
    SelectiveScanRecord,
)
from kernels.ops.states.delta_rule import DeltaShape
from kernels.ops.states.selective_scan import MambaShape, ScanRates
from kernels.ops.states.spans import AnySpans, Spans
from kernels.torch_ops import Ops

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team


class CpuRunner(Ops):
    """Runs each record at once, on the threads of a team."""

    def __init__(self, dtype: torch.dtype, team: "Team | None" = None) -> None:
        """dtype: of activations: bfloat16 or float32. team: None for that of the process."""
        if team is None:
            from kernels.cpu.runtime.thread_pool import TEAM  # compiles, the first time

            team = TEAM
        self.dtype, self.team = dtype, team

    def empty(self, shape: Sequence[int], dtype: torch.dtype, lasts: bool = False) -> torch.Tensor:
        """Returns memory for an output, one row per token. lasts: it is read after the step."""
        return torch.empty(shape, dtype=dtype)

    def sum_of(self, residual: torch.Tensor) -> torch.Tensor:
        """Returns memory for what replaces the residual stream."""
        return torch.empty_like(residual)

    def constant(self, value: torch.Tensor) -> torch.Tensor:
        """Returns a tensor that a record points at, and that may be nothing else's."""
        return value

    def run(
        self,
        operation: Operation[Any],
        rows: int,
        record: OperationRecord,
        grain: int,
        repeatable: bool = False,
    ) -> None:
        """grain: the fewest rows that a thread takes. repeatable: it writes to nothing that it reads, so that
        two threads may compute the same rows."""
        self.team.run_one(operation, rows, record, grain)

    def run_on_spans(self, operation: Operation[Any], record: Any, spans: AnySpans, parts: int) -> None:
        """As run(), of a record with so many rows for each span of the step."""
        assert isinstance(spans, Spans)
        record.spans = spans.columns.ctypes.data
        self.team.run_one(operation, parts * len(spans), record, 1)


class CpuStateOps(CpuRunner):
    """Gated delta nets and Mamba-2 layers."""

    @cached_property
    def states(self) -> StateKernels:
        """The compiled operations."""
        return state_kernels(self.dtype)

    def convolution(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        state: torch.Tensor,
        spans: AnySpans,
        drafted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x may have longer rows."""
        from kernels.cpu.states.convolution import BLOCK  # compiles, the first time

        taps, channels = weight.shape
        out = self.empty((len(x), channels), torch.float32)
        record = ConvolutionRecord(
            spans=0,
            x=x.data_ptr(),
            stride=x.stride(0),
            weight=weight.data_ptr(),
            bias=bias.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            channels=channels,
            taps=taps,
            drafted=0 if drafted is None else drafted.data_ptr(),
            drafts=0 if drafted is None else drafted.shape[1],
        )
        self.run_on_spans(self.states.convolve, record, spans, -(-channels // BLOCK))
        return out

    def delta_rule(
        self,
        mixed: torch.Tensor,
        gates: torch.Tensor,
        decay: torch.Tensor,
        bias: torch.Tensor,
        state: torch.Tensor,
        shape: DeltaShape,
        spans: AnySpans,
        log: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """gates may have longer rows."""
        from kernels.cpu.states.delta_rule import scratch_bytes  # compiles, the first time

        out = self.empty((len(mixed), shape.value_heads, shape.value_dim), torch.float32)
        record = DeltaRuleRecord(
            spans=0,
            mixed=mixed.data_ptr(),
            gates=gates.data_ptr(),
            stride=gates.stride(0),
            decay=decay.data_ptr(),
            bias=bias.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            log=0 if log is None else log.data_ptr(),
            scratch=self.team.scratch(scratch_bytes(shape.key_dim, shape.value_dim)),
            key_heads=shape.key_heads,
            value_heads=shape.value_heads,
            key_dim=shape.key_dim,
            value_dim=shape.value_dim,
            drafts=0 if log is None else log.shape[2],
        )
        self.run_on_spans(self.states.learn, record, spans, shape.value_heads)
        return out

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """gate may have longer rows."""
        tokens, heads, width = x.shape
        out = self.empty((tokens, heads * width), gate.dtype)
        record = GatedNormRecord(
            x=x.data_ptr(),
            gate=gate.data_ptr(),
            stride=gate.stride(0),
            weight=weight.data_ptr(),
            out=out.data_ptr(),
            heads=heads,
            width=width,
            eps=eps,
        )
        self.run(self.states.gated_norm, tokens, record, row_grain(heads * width))
        return out

    def output_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        x, gate = x.contiguous(), gate.contiguous()
        out = self.empty(x.shape, x.dtype)
        record = OutputGateRecord(x=x.data_ptr(), gate=gate.data_ptr(), out=out.data_ptr(), width=x.shape[1])
        self.run(self.states.gate, len(x), record, row_grain(x.shape[1]), repeatable=True)
        return out

    def selective_scan(
        self,
        mixed: torch.Tensor,
        steps: torch.Tensor,
        rates: ScanRates,
        state: torch.Tensor,
        shape: MambaShape,
        spans: AnySpans,
        log: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """steps may have longer rows."""
        from kernels.cpu.states.selective_scan import scratch_bytes  # compiles, the first time

        out = self.empty((len(mixed), shape.values), torch.float32)
        record = SelectiveScanRecord(
            spans=0,
            mixed=mixed.data_ptr(),
            steps=steps.data_ptr(),
            rates=rates.packed.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            log=0 if log is None else log.data_ptr(),
            scratch=self.team.scratch(scratch_bytes(shape.state_size, shape.head_dim)),
            stride=steps.stride(0),
            heads=shape.heads,
            head_dim=shape.head_dim,
            groups=shape.groups,
            state_size=shape.state_size,
            drafts=0 if log is None else log.shape[2],
            step_factor=rates.step_factor,
        )
        self.run_on_spans(self.states.scan, record, spans, shape.heads)
        return out

    def grouped_norm(
        self,
        x: torch.Tensor,
        gate: torch.Tensor,
        weight: torch.Tensor | None,
        groups: int,
        eps: float,
        factor: float = 1.0,
    ) -> torch.Tensor:
        """gate may have longer rows. x changes."""
        out = self.empty(x.shape, gate.dtype)
        record = GroupedNormRecord(
            x=x.data_ptr(),
            gate=gate.data_ptr(),
            stride=gate.stride(0),
            weight=0 if weight is None else weight.data_ptr(),
            out=out.data_ptr(),
            groups=groups,
            width=x.shape[1] // groups,
            eps=eps,
            factor=factor,
        )
        self.run(self.states.grouped_norm, len(x), record, row_grain(x.shape[1]))
        return out
