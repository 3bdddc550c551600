"""kernels.ops.layers.norms on CUDA: one program per row, the whole row in registers.

x, residual: [..., E] contiguous, float32, bfloat16 or float16; weight: [E]. Squares are summed in float32;
the sum of x and r is rounded to the dtype before it is normed, as in the reference.
Bytes moved: 2 * E values per row; with the residual 4 * E. A decode step of 32 rows of 4096 is 1 MB: the
launch is what it costs, which is why norm and addition are one. Speed: not yet measured on a GPU.
"""

import torch
import triton
import triton.language as tl

from kernels.triton.requirements import next_power_of_2

LARGEST_WIDTH = 16384
"""Values of a row in registers: 32 per thread of 16 warps. Wider models are not known to us."""


@triton.jit
def _rms_norm_kernel(
    x,  # [T, E]
    residual,  # [T, E]
    weight,  # [E]
    normed,  # [T, E]
    total,  # [T, E]
    eps,
    offset,
    residual_factor,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
):
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    value = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        value *= residual_factor
        value += tl.load(residual + at, mask=inside, other=0.0).to(tl.float32)
        rounded = value.to(total.dtype.element_ty)
        tl.store(total + at, rounded, mask=inside)
        value = rounded.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / WIDTH + eps)
    factor = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32) + offset
    tl.store(normed + at, (value * scale * factor).to(normed.dtype.element_ty), mask=inside)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """[..., E] -> [..., E], contiguous. offset: is added to the weight."""
    x = x.contiguous()
    normed = torch.empty_like(x)
    _launch(x, None, weight, normed, None, (eps, offset, 1.0))
    return normed


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    offset: float = 0.0,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The normed sum and the sum. Neither input is changed. offset: is added to the weight. factor: of x."""
    assert x.shape == residual.shape and x.dtype == residual.dtype
    x, residual = x.contiguous(), residual.contiguous()
    normed, total = torch.empty_like(x), torch.empty_like(x)
    _launch(x, residual, weight, normed, total, (eps, offset, factor))
    return normed, total


def _launch(
    x: torch.Tensor,
    residual: torch.Tensor | None,
    weight: torch.Tensor,
    normed: torch.Tensor,
    total: torch.Tensor | None,
    numbers: tuple[float, float, float],
) -> None:
    """numbers: eps, offset, factor. One warp per 512 values: 16 per thread, which are two
    loads of 16 bytes at two bytes a value."""
    width = weight.shape[0]
    assert weight.is_contiguous() and x.shape[-1] == width <= LARGEST_WIDTH
    rows, block = x.numel() // width, next_power_of_2(width)
    if rows:
        warps = min(16, max(1, block // 512))
        _rms_norm_kernel[(rows,)](
            x, residual, weight, normed, total, *numbers, width, block, residual is not None, num_warps=warps
        )
