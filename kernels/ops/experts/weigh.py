"""The inputs of each token's experts, multiplied by their weights: for families that weigh what experts take
in place of what they give.

    out[places[t, j]] = x[t] * weights[t, j]

x: [T, E]; weights: [T, k] float32; places: [T, k] int64, of the pairs sorted by expert. Products are float32,
rounded once.

Bytes moved: E read and k * E written per token.
"""

import torch


def weigh(x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns [T * k, E], of x's dtype, sorted by expert."""
    weighted = (x.float()[:, None] * weights[..., None]).to(x.dtype)
    out = x.new_empty((places.numel(), x.shape[1]))
    out[places.flatten()] = weighted.flatten(0, 1)
    return out
