"""Norms over the last dimension, alone and fused with the residual addition; additions that no norm takes;
what some families do with logits before anything else: a factor, and a soft cap; and norms with a gate.

    rms_norm(x)[t]     = x[t] / sqrt(mean(x[t] ** 2) + eps) * (weight + offset)
    layer_norm(x)[t]   = (x[t] - mean(x[t])) / sqrt(var(x[t]) + eps) * weight + bias
    add_rms_norm(x, r) = rms_norm(x * factor + r), x * factor + r
    scaled_add(x, y)   = x * factor + y
    adjust_logits(x)   = x * scale, or cap * tanh(x * scale / cap)
    gated_norm(x, g)   = norm(x) * weight * silu(g)             by head, with one weight: gated delta nets
    grouped_norm(x, g) = norm(x * silu(factor * g)) * weight    by group, or without norm and weight: Mamba-2
    output_gate(x, g)  = x * sigmoid(g)                         of attention

x, residual, y: [..., E], one dtype (float32, bfloat16, float16). weight, bias: [E], the same dtype; those of
a layer norm may be None. var is the biased variance. Sums are float32 whatever the dtype; a row's result
depends on that row alone. Bytes moved: a norm reads and writes x once; with the addition it reads x and
residual and writes both results, where the two operations one after the other would read the sum a second
time.
"""

import torch
from torch.nn.functional import silu


def rms_norm_reference(
    x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0
) -> torch.Tensor:
    """The formula, in float32 or wider. [..., E] -> [..., E]."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    scale = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)
    return (wide * scale * (weight.to(wide.dtype) + offset)).to(x.dtype)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float, offset: float = 0.0) -> torch.Tensor:
    """[..., E] -> [..., E]. offset: 1 where weights are stored as their distance from 1."""
    if offset:
        return rms_norm_reference(x, weight, eps, offset)
    return torch.rms_norm(x, weight.shape, weight, eps)


def add_rms_norm(
    x: torch.Tensor,
    residual: torch.Tensor,
    weight: torch.Tensor,
    eps: float,
    offset: float = 0.0,
    factor: float = 1.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the normed sum and the sum, which is rounded to the dtype before it is normed. Neither input is
    changed. offset: see rms_norm(). factor: of x."""
    total = torch.add(residual, x, alpha=factor)
    return rms_norm(total, weight, eps, offset), total


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


def scaled_add(x: torch.Tensor, y: torch.Tensor | None, factor: float = 1.0) -> torch.Tensor:
    """[T, E] -> [T, E], a new tensor."""
    return x * factor if y is None else torch.add(y, x, alpha=factor)


def adjust_logits(logits: torch.Tensor, scale: float, cap: float | None) -> torch.Tensor:
    """[A, V] float32 -> [A, V], a new tensor. scale, cap: above 0; cap None: there is none."""
    scaled = logits * scale
    return scaled if cap is None else torch.tanh(scaled / cap) * cap


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, H, D] float32; gate: [T, H * D] and weight: [D] of the model's dtype. Returns [T, H * D] of that
    dtype."""
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()
    return (normed.flatten(1) * silu(gate.float())).to(gate.dtype)


def grouped_norm(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor | None,
    groups: int,
    eps: float,
    factor: float = 1.0,
) -> torch.Tensor:
    """x: [T, I] float32; gate: [T, I] and weight: [I] of the model's dtype; None: there is no norm. Each
    I / groups values in a row have a norm of their own. Returns [T, I] of that dtype."""
    gated = (x * silu(gate.float() * factor)).reshape(len(x), groups, -1)
    if weight is None:
        return gated.reshape(x.shape).to(gate.dtype)
    normed = gated * torch.rsqrt((gated * gated).mean(-1, keepdim=True) + eps)
    return (normed.reshape(x.shape) * weight.float()).to(gate.dtype)


def output_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """[T, W] -> [T, W]."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
