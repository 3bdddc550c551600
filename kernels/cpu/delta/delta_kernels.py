"""The operations of gated delta nets: single calls, and the records of a program."""

from dataclasses import dataclass

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.delta.convolution_kernels import ConvolutionKernels
from kernels.cpu.delta.records import DeltaRuleRecord, GatedNormRecord, OutputGateRecord
from kernels.cpu.elementwise.row_kernels import row_grain
from kernels.ops.delta.delta_rule import DeltaShape
from kernels.ops.delta.spans import Spans


@dataclass(frozen=True)
class DeltaKernels(ConvolutionKernels):
    """The compiled operations, for activations of one dtype."""

    learn: Operation[DeltaRuleRecord]  # kernels.cpu.delta.delta_rule.delta_rule
    norm: Operation[GatedNormRecord]  # kernels.cpu.delta.gated_norm.gated_norm
    gate: Operation[OutputGateRecord]  # kernels.cpu.delta.output_gate.output_gate

    def delta_rule(
        self,
        mixed: torch.Tensor,
        gates: torch.Tensor,
        decay: torch.Tensor,
        bias: torch.Tensor,
        state: torch.Tensor,
        shape: DeltaShape,
        spans: Spans,
        log: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """gates may have longer rows."""
        out = torch.empty((len(mixed), shape.value_heads, shape.value_dim))
        record = self.delta_record(mixed, gates, (decay, bias), state, out, shape, log)
        record.spans = spans.columns.ctypes.data
        self.team.run_one(self.learn, shape.value_heads * len(spans), record, 1)
        return out

    def delta_record(
        self,
        mixed: torch.Tensor,
        gates: torch.Tensor,
        rates: tuple[torch.Tensor, torch.Tensor],
        state: torch.Tensor,
        out: torch.Tensor,
        shape: DeltaShape,
        log: torch.Tensor | None = None,
    ) -> DeltaRuleRecord:
        """Without its spans. rates: decay and bias. log: None: no token is drafted."""
        from kernels.cpu.delta.delta_rule import scratch_bytes

        decay, bias = rates
        return DeltaRuleRecord(
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

    def gated_norm(
        self, x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> torch.Tensor:
        """gate may have longer rows."""
        out = gate.new_empty((len(x), x.shape[1] * x.shape[2]))
        record = gated_norm_record(x, gate, weight, out, eps)
        self.team.run_one(self.norm, len(x), record, row_grain(out.shape[1]))
        return out

    def output_gate(self, x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """x * sigmoid(gate), [T, W]."""
        x, gate = x.contiguous(), gate.contiguous()
        out = torch.empty_like(x)
        record = output_gate_record(x, gate, out)
        self.team.run_one(self.gate, len(x), record, row_grain(x.shape[1]))
        return out


def gated_norm_record(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, eps: float
) -> GatedNormRecord:
    """Of the tensors of kernels.ops.delta.gated_norm, and that of the result; gate may have longer rows."""
    return GatedNormRecord(
        x=x.data_ptr(),
        gate=gate.data_ptr(),
        stride=gate.stride(0),
        weight=weight.data_ptr(),
        out=out.data_ptr(),
        heads=out.shape[1] // weight.shape[0],
        width=weight.shape[0],
        eps=eps,
    )


def output_gate_record(x: torch.Tensor, gate: torch.Tensor, out: torch.Tensor) -> OutputGateRecord:
    """x, gate, out: [rows, width], contiguous."""
    return OutputGateRecord(x=x.data_ptr(), gate=gate.data_ptr(), out=out.data_ptr(), width=x.shape[1])


def delta_kernels(dtype: torch.dtype) -> DeltaKernels:
    """Returns the kernels, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.delta.convolution import convolution, convolution_float32  # compiles, the first time
    from kernels.cpu.delta.delta_rule import delta_rule, delta_rule_float32
    from kernels.cpu.delta.gated_norm import gated_norm, gated_norm_float32
    from kernels.cpu.delta.output_gate import output_gate, output_gate_float32
    from kernels.cpu.runtime.thread_pool import TEAM

    if dtype == torch.float32:
        return DeltaKernels(
            TEAM, convolution_float32, delta_rule_float32, gated_norm_float32, output_gate_float32
        )
    return DeltaKernels(TEAM, convolution, delta_rule, gated_norm, output_gate)
