"""The weighted sum of what the experts of each token have computed.

    out[t] = sum_j weights[t, j] * y[places[t, j]]  +  sigmoid(gate[t]) * shared[t]

y: [P, E], the outputs of the pairs sorted by expert; weights: [T, k] float32; places: [T, k] int64; shared:
[T, E] or None, the output of the experts that all tokens have; gate: [T] float32 or None for a factor of 1.
Sums are float32, over j in ascending order, rounded once: they do not depend on other tokens.

Bytes moved: (k + 1) * E read and E written per token.
"""

import torch


def combine(
    y: torch.Tensor,
    weights: torch.Tensor,
    places: torch.Tensor,
    shared: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns [T, E], of y's dtype."""
    total = y[places[:, 0]].float() * weights[:, :1]
    for j in range(1, weights.shape[1]):
        total = total + y[places[:, j]].float() * weights[:, j : j + 1]
    if shared is not None:
        added = shared.float()
        total = total + (added if gate is None else added * torch.sigmoid(gate)[:, None])
    return total.to(y.dtype)
