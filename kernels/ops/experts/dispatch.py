"""The pairs of tokens and experts: sorted by expert, so that an expert's weights are read once for all its
tokens; what experts take, multiplied by the weights of pairs; and the weighted sum of what they give.

    weigh:    out[places[t, j]] = x[t] * weights[t, j]
    combine:  out[t] = sum_j weights[t, j] * y[places[t, j]]  +  sigmoid(gate[t]) * shared[t]

T tokens have k experts each: P = T * k pairs. Pair (t, j) is numbered t * k + j, and pairs of one expert stay
in that order. weights: [T, k] float32; places: [T, k] int64, where each pair is. Products and sums are
float32, over j in ascending order, rounded once: they do not depend on other tokens.

Bytes moved: weigh reads E and writes k * E per token, combine reads (k + 1) * E and writes E.
"""

from typing import NamedTuple

import torch


class Dispatch(NamedTuple):
    """The order of the T * k pairs."""

    tokens: torch.Tensor  # [T * k] int64: the token of each pair, sorted by expert
    places: torch.Tensor  # [T, k] int64: where each pair is in that order
    counts: torch.Tensor  # [N] int64: pairs of each expert


def dispatch(experts: torch.Tensor, num_experts: int) -> Dispatch:
    """Returns the order. Nothing of it is read by the host."""
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return Dispatch(order // experts.shape[1], places.view(experts.shape), counts)


def weigh(x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns [T * k, E], of x's dtype, sorted by expert."""
    weighted = (x.float()[:, None] * weights[..., None]).to(x.dtype)
    out = x.new_empty((places.numel(), x.shape[1]))
    out[places.flatten()] = weighted.flatten(0, 1)
    return out


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
