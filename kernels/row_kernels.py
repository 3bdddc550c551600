"""rms_norm, gated_activation and rotary on a CPU with AVX512-BF16: one call each, where torch needs
several and rounds in between.

The operations are those of kernels.rms_norm, kernels.activation (silu) and kernels.rotary, for bfloat16.
A row's result depends on that row alone, bit for bit. At few tokens the call is what costs: a norm with
its addition takes 3 us instead of 16 for one row of 576 values. Widths are multiples of 16 and head
sizes of 32, otherwise torch computes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowKernels:
    """The compiled operations."""

    norm_kernel: Callable[..., None]  # kernels.cpu.rms_norm.rms_norm_bf16
    silu_kernel: Callable[..., None]  # kernels.cpu.activation.gated_silu_bf16
    rotary_kernel: Callable[..., None]  # kernels.cpu.rotary.rotary_bf16

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """[..., E] -> [..., E], contiguous."""
        x = x.contiguous()
        normed, width = torch.empty_like(x), weight.shape[0]
        at, rows = x.data_ptr(), x.numel() // width
        self.norm_kernel(at, 0, weight.data_ptr(), normed.data_ptr(), at, rows, width, eps)
        return normed

    def add_rms_norm(
        self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The normed sum and the sum, both [..., E]. Neither input is changed."""
        x, residual = x.contiguous(), residual.contiguous()
        normed, total, width = torch.empty_like(x), torch.empty_like(x), weight.shape[0]
        self.norm_kernel(
            x.data_ptr(),
            residual.data_ptr(),
            weight.data_ptr(),
            normed.data_ptr(),
            total.data_ptr(),
            x.numel() // width,
            width,
            eps,
        )
        return normed, total

    def gated_silu(self, gate_up: torch.Tensor) -> torch.Tensor:
        """[T, 2 * I] -> [T, I]."""
        gate_up = gate_up.contiguous()
        rows, width = gate_up.shape[0], gate_up.shape[1] // 2
        out = gate_up.new_empty((rows, width))
        self.silu_kernel(gate_up.data_ptr(), out.data_ptr(), rows, width)
        return out

    def rotate(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        """[T, N, D] -> x itself, changed; its heads are contiguous, its tokens may be strided."""
        tokens, heads, head_dim = x.shape
        assert x.stride()[1:] == (head_dim, 1) and cos.is_contiguous() and sin.is_contiguous()
        self.rotary_kernel(
            x.data_ptr(), 2 * x.stride(0), cos.data_ptr(), sin.data_ptr(), tokens, heads, head_dim
        )
        return x


def row_kernels() -> RowKernels:
    """Call where kernels.cpu.support.why_not() is None."""
    from kernels.cpu.activation import gated_silu_bf16  # compiles, the first time
    from kernels.cpu.rms_norm import rms_norm_bf16
    from kernels.cpu.rotary import rotary_bf16

    return RowKernels(rms_norm_bf16, gated_silu_bf16, rotary_bf16)
