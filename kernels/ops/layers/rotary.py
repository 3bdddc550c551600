"""Rotary position embedding: rotates the pairs (x[i], x[i + D/2]) of every head by an angle per token.

    y[i]       = x[i] * cos[i] - x[i + D/2] * sin[i]          0 <= i < D/2
    y[i + D/2] = x[i + D/2] * cos[i] + x[i] * sin[i]

x:   [T, N, D]; N counts query and key heads, which are rotated in one go
cos: [T, D] float32, the D/2 cosines twice
sin: [T, D] float32, the D/2 sines twice, the first half negated: the formula becomes
     y = x * cos + roll(x, D/2) * sin, without a branch on the half
The product is computed in float32 and rounded once to the dtype of x.
Bytes moved: x read once and written once; cos and sin are shared by all heads and layers.
"""

import torch


def rotary(
    x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, index: torch.Tensor | None = None
) -> torch.Tensor:
    """[T, N, D] -> [T, N, D], a new tensor; x may be a strided view. index: [T] int64, each token's row of
    cos and sin, [P, D]; None: its own number."""
    if index is not None:
        cos, sin = cos[index], sin[index]
    assert cos.shape == sin.shape == (x.shape[0], x.shape[2])
    wide = x.to(cos.dtype)
    turned = wide.roll(x.shape[-1] // 2, dims=-1)
    return torch.addcmul(wide * cos[:, None], turned, sin[:, None]).to(x.dtype)
