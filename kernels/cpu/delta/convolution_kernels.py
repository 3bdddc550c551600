"""The convolution over the last tokens of each row: a single call, and the record of a program."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from kernels.cpu.compiler.records import Operation
from kernels.cpu.delta.records import ConvolutionRecord
from kernels.ops.delta.spans import Spans

if TYPE_CHECKING:
    from kernels.cpu.runtime.thread_pool import Team


@dataclass(frozen=True)
class ConvolutionKernels:
    """The compiled operation, for activations of one dtype, beside those of the layers that convolve."""

    team: "Team"
    convolve: Operation[ConvolutionRecord]  # kernels.cpu.delta.convolution.convolution

    def convolution(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        state: torch.Tensor,
        spans: Spans,
        drafted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x may have longer rows."""
        out = torch.empty((len(x), weight.shape[1]))
        record = self.convolution_record(x, weight, bias, state, out, drafted)
        record.spans = spans.columns.ctypes.data
        self.team.run_one(self.convolve, self.blocks(weight) * len(spans), record, 1)
        return out

    def convolution_record(
        self,
        x: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        state: torch.Tensor,
        out: torch.Tensor,
        drafted: torch.Tensor | None = None,
    ) -> ConvolutionRecord:
        """Without its spans. drafted: None: no token is."""
        return ConvolutionRecord(
            spans=0,
            x=x.data_ptr(),
            stride=x.stride(0),
            weight=weight.data_ptr(),
            bias=bias.data_ptr(),
            state=state.data_ptr(),
            out=out.data_ptr(),
            channels=weight.shape[1],
            taps=weight.shape[0],
            drafted=0 if drafted is None else drafted.data_ptr(),
            drafts=0 if drafted is None else drafted.shape[1],
        )

    def blocks(self, weight: torch.Tensor) -> int:
        """Rows of the convolution's operation for each row of a step. weight: [taps, C]."""
        from kernels.cpu.delta.convolution import BLOCK

        return -(-weight.shape[1] // BLOCK)
