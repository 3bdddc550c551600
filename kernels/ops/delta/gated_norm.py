"""Gates: norm(x) * weight * silu(gate) by head, of a gated delta net, and x * sigmoid(gate), of attention."""

import torch
from torch.nn.functional import silu


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, H, D] float32; gate: [T, H * D] and weight: [D] of the model's dtype. Returns [T, H * D] of that
    dtype."""
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()
    return (normed.flatten(1) * silu(gate.float())).to(gate.dtype)


def output_gate(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """Returns x * sigmoid(gate), [T, W], computed in float32 and rounded once."""
    return (x.float() * torch.sigmoid(gate.float())).to(x.dtype)
