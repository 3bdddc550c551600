"""Formulas of layers, for tests of kernels.ops.layers."""

import math

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


def activation_reference(x: torch.Tensor, name: str) -> torch.Tensor:
    """The formula, in float32 or wider. [T, I] -> [T, I]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    if name in ("silu", "swish"):
        result = wide / (1 + torch.exp(-wide))
    elif name == "gelu":
        result = wide * (1 + torch.erf(wide / math.sqrt(2))) / 2
    elif name == "quick_gelu":
        result = wide / (1 + torch.exp(-1.702 * wide))
    elif name == "relu":
        result = wide.clamp(min=0)
    else:
        result = wide * (1 + torch.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3))) / 2
    return result.to(x.dtype)


def gated_activation_reference(gate_up: torch.Tensor, name: str) -> torch.Tensor:
    """The formula. [T, 2 * I] -> [T, I]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return activation_reference(gate, name) * up


def rotary_reference(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The formula, half by half. [T, N, D] -> [T, N, D]."""
    half = x.shape[-1] // 2
    first, second = x[..., :half].to(cos.dtype), x[..., half:].to(cos.dtype)
    cosine, sine = cos[:, None, half:], sin[:, None, half:]
    rotated = torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)
    return rotated.to(x.dtype)
