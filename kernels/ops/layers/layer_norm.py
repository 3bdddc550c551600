"""Layer norm over the last dimension.

    layer_norm(x)[t] = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias

x: [..., E] (float32, bfloat16, float16). weight, bias: [E] of the same dtype, or both None.
var is the biased variance. Sums are float32; a row's result depends on that row alone.
Bytes moved: x read once and written once.
"""

import torch


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


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: float
) -> torch.Tensor:
    """[..., E] -> [..., E]."""
    return torch.layer_norm(x, x.shape[-1:], weight, bias, eps)


def add_layer_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the normed sum and the sum x + residual, both [..., E]. Neither input is changed."""
    total = residual + x
    return layer_norm(total, weight, bias, eps), total
