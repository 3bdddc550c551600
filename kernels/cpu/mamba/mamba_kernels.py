"""The operations of Mamba-2 layers: single calls, and the records of a program."""

from dataclasses import dataclass

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.delta.convolution_kernels import ConvolutionKernels
from kernels.cpu.elementwise.row_kernels import row_grain
from kernels.cpu.mamba.records import GroupedNormRecord, SelectiveScanRecord
from kernels.ops.delta.spans import Spans
from kernels.ops.mamba.selective_scan import MambaShape, ScanRates


@dataclass(frozen=True)
class MambaKernels(ConvolutionKernels):
    """The compiled operations, for activations of one dtype."""

    scan: Operation[SelectiveScanRecord]  # kernels.cpu.mamba.selective_scan.selective_scan
    norm: Operation[GroupedNormRecord]  # kernels.cpu.mamba.grouped_norm.grouped_norm

    def selective_scan(
        self,
        mixed: torch.Tensor,
        steps: torch.Tensor,
        rates: ScanRates,
        state: torch.Tensor,
        shape: MambaShape,
        spans: Spans,
        log: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """steps may have longer rows."""
        out = torch.empty((len(mixed), shape.values))
        record = self.scan_record(mixed, steps, rates, state, out, shape, log)
        record.spans = spans.columns.ctypes.data
        self.team.run_one(self.scan, shape.heads * len(spans), record, 1)
        return out

    def scan_record(
        self,
        mixed: torch.Tensor,
        steps: torch.Tensor,
        rates: ScanRates,
        state: torch.Tensor,
        out: torch.Tensor,
        shape: MambaShape,
        log: torch.Tensor | None = None,
    ) -> SelectiveScanRecord:
        """Of the tensors of kernels.ops.mamba.selective_scan, and that of the result; without its spans."""
        from kernels.cpu.mamba.selective_scan import scratch_bytes

        return SelectiveScanRecord(
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
        out = gate.new_empty(x.shape)
        record = grouped_norm_record(x, gate, weight, out, groups, eps, factor)
        self.team.run_one(self.norm, len(x), record, row_grain(x.shape[1]))
        return out


def grouped_norm_record(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    out: torch.Tensor,
    groups: int,
    eps: float,
    factor: float = 1.0,
) -> GroupedNormRecord:
    """Of the tensors of kernels.ops.mamba.grouped_norm, and that of the result; gate may have longer rows."""
    return GroupedNormRecord(
        x=x.data_ptr(),
        gate=gate.data_ptr(),
        stride=gate.stride(0),
        weight=0 if weight is None else weight.data_ptr(),
        out=out.data_ptr(),
        groups=groups,
        width=out.shape[1] // groups,
        eps=eps,
        factor=factor,
    )


def mamba_kernels(dtype: torch.dtype) -> MambaKernels:
    """Returns the kernels, compiled if needed. Call only if kernels.cpu.requirements.why_not() is None.
    dtype: bfloat16 or float32."""
    from kernels.cpu.delta.convolution import convolution, convolution_float32  # compiles, the first time
    from kernels.cpu.mamba.grouped_norm import grouped_norm, grouped_norm_float32
    from kernels.cpu.mamba.selective_scan import selective_scan, selective_scan_float32
    from kernels.cpu.runtime.thread_pool import TEAM

    if dtype == torch.float32:
        return MambaKernels(TEAM, convolution_float32, selective_scan_float32, grouped_norm_float32)
    return MambaKernels(TEAM, convolution, selective_scan, grouped_norm)
