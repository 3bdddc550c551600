"""Sorts the pairs of tokens and experts by expert, so that an expert's weights are read once for all its
tokens.

experts: [T, k] int64. A pair is numbered t * k + j. Pairs of one expert stay in that order.
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
