"""Norms with a gate, and the gate of attention.

    gated_norm    norm(x) * weight * silu(gate)             by head, with one weight: gated delta nets
    grouped_norm  norm(x * silu(factor * gate)) * weight    by group, or without norm and weight: Mamba-2
    output_gate   x * sigmoid(gate)                         of attention

Computed in float32, rounded once.
"""

import torch
from torch.nn.functional import silu


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
