"""kernels.ops.layers.clamped_swiglu on CUDA: the gated activation of gpt-oss in one pass.

    out = (clamp(up, -limit, limit) + 1) * g * sigmoid(alpha * g),   g = min(gate, limit)

gate_up: [T, 2 * I], gate before up, rows contiguous -> [T, I]. Computed in float32, rounded once; what is no
number stays none. Bytes moved: 3 * I values per token. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

BLOCK = 1024
"""Values of a program: 8 per thread, a load of 16 bytes each for gate and up."""


@triton.jit
def _clamped_kernel(
    gate_up,  # [T, 2 * I]
    out,  # [T, I]
    width,
    alpha,
    limit,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    at = gate_up + row * 2 * width + column
    gate = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(at + width, mask=inside, other=0.0).to(tl.float32)
    gate = tl.where(gate > limit, limit, gate)
    up = tl.where(up > limit, limit, tl.where(up < -limit, -limit, up))
    y = (up + 1) * gate / (1 + tl.exp(-alpha * gate))
    tl.store(out + row * width + column, y.to(out.dtype.element_ty), mask=inside)


def clamped_swiglu(gate_up: torch.Tensor, alpha: float, limit: float) -> torch.Tensor:
    """[T, 2 * I] -> [T, I]."""
    rows, width = gate_up.shape[0], gate_up.shape[1] // 2
    assert gate_up.is_contiguous() and gate_up.shape[1] == 2 * width
    out = torch.empty((rows, width), dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        grid = rows, triton.cdiv(width, BLOCK)
        _clamped_kernel[grid](gate_up, out, width, alpha, limit, BLOCK, num_warps=4)
    return out
