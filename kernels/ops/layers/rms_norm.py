"""Root-mean-square norm over the last dimension, alone and fused with the residual addition.

    rms_norm(x)[t]     = x[t] / sqrt(mean(x[t] ** 2) + eps) * weight
    add_rms_norm(x, r) = rms_norm(x + r), x + r

x, residual: [..., E], one dtype (float32, bfloat16, float16). weight: [E], the same dtype.
Squares are summed in float32 whatever the dtype; a row's result depends on that row alone.
Bytes moved: rms_norm reads and writes x once; add_rms_norm reads x and residual and writes both
results, where the two operations one after the other would read the sum a second time.
"""

import torch

from kernels.triton.requirements import uses_triton


def rms_norm_reference(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The formula, in float32 or wider. [..., E] -> [..., E]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * weight.to(wide.dtype)).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """[..., E] -> [..., E]. Dispatches on the device."""
    if uses_triton(x):
        from kernels.triton.elementwise import rms_norm as gpu

        return gpu.rms_norm(x, weight, eps)
    return torch.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm_reference(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The formula; the sum is rounded to the dtype before it is normed."""
    total = x + residual
    return rms_norm_reference(total, weight, eps), total


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the normed sum and the sum. Neither input is changed. Dispatches on the device."""
    if uses_triton(x):
        from kernels.triton.elementwise import rms_norm as gpu

        return gpu.add_rms_norm(x, residual, weight, eps)
    total = x + residual
    return rms_norm(total, weight, eps), total
