"""norm(x) * weight * silu(gate), by head: what a gated delta net does with the outputs of its heads."""

import torch
from torch.nn.functional import silu


def gated_norm(x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """x: [T, H, D] float32; gate: [T, H * D] and weight: [D] of the model's dtype. Returns [T, H * D] of that
    dtype."""
    normed = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + eps) * weight.float()
    return (normed.flatten(1) * silu(gate.float())).to(gate.dtype)
