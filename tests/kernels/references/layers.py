"""Formulas of layers, for tests of kernels.ops.layers."""

import torch


def linear_reference(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """The formula, in float32 or wider. [T, K] -> [T, N]."""
    wide = torch.promote_types(x.dtype, torch.float32)
    result = (x.to(wide)[:, None] * weight.to(wide)).sum(-1)
    return (result if bias is None else result + bias.to(wide)).to(x.dtype)


def layer_norm_reference(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """The formula, in float32 or wider. [..., E] -> [..., E]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    centered = wide - wide.mean(-1, keepdim=True)
    result = centered * torch.rsqrt(centered.pow(2).mean(-1, keepdim=True) + eps)
    if weight is not None and bias is not None:
        result = result * weight.to(wide.dtype) + bias.to(wide.dtype)
    return result.to(x.dtype)
