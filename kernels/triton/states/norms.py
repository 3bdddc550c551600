"""kernels.ops.layers.norms on CUDA: a program per token and group.

    gated_norm    norm(x) * weight * silu(gate)                by head, all with one weight
    grouped_norm  norm(x * silu(factor * gate)) * weight       by group of values; or without norm and weight

Float32, rounded once. Bytes moved: x, the gate and the result once. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2


@triton.jit
def _norm_kernel(
    x,  # [T, G, W]
    gate,  # [T, G * W]
    weight,  # [W], or [G * W] where gates come first; or None
    out,  # [T, G * W]
    gate_stride,
    eps,
    factor,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    GATES_FIRST: tl.constexpr,
):
    token, group = tl.program_id(0).to(tl.int64), tl.program_id(1)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = group * WIDTH + column
    value = tl.load(x + token * (GROUPS * WIDTH) + at, mask=inside, other=0.0)
    g = tl.load(gate + token * gate_stride + at, mask=inside, other=0.0).to(tl.float32) * factor
    opened = g / (1.0 + tl.exp(-g))
    if GATES_FIRST:
        value = value * opened
    if weight is not None:
        factors = tl.load(weight + (at if GATES_FIRST else column), mask=inside, other=0.0).to(tl.float32)
        value = value * tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps) * factors
    if not GATES_FIRST:
        value = value * opened
    tl.store(out + token * (GROUPS * WIDTH) + at, value.to(out.dtype.element_ty), mask=inside)


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, H, D] float32, contiguous; gate: [T, H * D], rows may be strided, and weight: [D] of the model's
    dtype. Returns [T, H * D] of that dtype."""
    return _launch(x, gate, weight, (eps, 1.0), x.shape[1], False)


def grouped_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    groups: int,
    eps: float,
    factor: float = 1.0,
) -> torch.Tensor:
    """x: [T, I] float32, contiguous; gate: [T, I], rows may be strided, and weight: [I] of the model's dtype;
    None: there is no norm. Returns [T, I] of that dtype."""
    return _launch(x, gate, weight, (eps, factor), groups, True)


def _launch(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    numbers: tuple[float, float],
    groups: int,
    gates_first: bool,
) -> torch.Tensor:
    """numbers: eps, and the factor of gates."""
    tokens, values = gate.shape
    assert x.is_contiguous() and x.numel() == gate.numel() and gate.stride(1) == 1
    assert weight is None or weight.is_contiguous()
    out = torch.empty((tokens, values), dtype=gate.dtype, device=gate.device)
    width = values // groups
    block = next_power_of_2(width)
    if tokens:
        _norm_kernel[(tokens, groups)](
            x,
            gate,
            weight,
            out,
            gate.stride(0),
            *numbers,
            GROUPS=groups,
            WIDTH=width,
            BLOCK=block,
            GATES_FIRST=gates_first,
            num_warps=min(16, max(1, block // 512)),
        )
    return out
