"""norm(x * silu(factor * gate)) * weight, by group of values: what a Mamba-2 layer does with the outputs of
its heads. Some layers gate without a norm."""

import torch
from torch.nn.functional import silu


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
