"""Chooses the experts of each token; see kernels.ops.experts.routing.

logits: [T, N] float32; correction: [N] float32 or None. Weights [T, k] float32, experts [T, k] int64, the
best one first. A token's choice depends on its own logits alone.

Bytes moved: N read and 2 k written per token.
"""

import torch

from kernels.ops.experts.routing import Routing, Score


def route(
    logits: torch.Tensor, correction: torch.Tensor | None, routing: Routing
) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns weights [T, k] float32 and experts [T, k] int64."""
    scores = logits.float()
    if routing.score is Score.SOFTMAX:
        scores = torch.softmax(scores, dim=-1)
    elif routing.score is Score.SIGMOID:
        scores = torch.sigmoid(scores)
    choice = scores if correction is None else scores + correction
    if routing.groups > 1:
        choice = _of_best_groups(choice, routing)
    experts = _largest(choice, routing.top_k)
    weights = scores.gather(-1, experts)
    if routing.score is Score.SOFTMAX_OF_CHOSEN:
        weights = torch.softmax(weights, dim=-1)
    elif routing.score is Score.SIGMOID_OF_CHOSEN:
        weights = torch.sigmoid(weights)
    elif routing.score is Score.SPARSE_MIXER:
        weights = _sparse_mixer(scores, experts, routing.tolerance)
    if routing.normalized:
        weights = weights / (weights.sum(-1, keepdim=True) + routing.least_sum)
    return weights * routing.scale, experts


def _largest(values: torch.Tensor, count: int) -> torch.Tensor:
    """Returns the places of the largest, [T, count]: in descending order, equal ones as they stand.
    (torch.topk leaves open which of equal ones it takes.)"""
    return values.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _of_best_groups(choice: torch.Tensor, routing: Routing) -> torch.Tensor:
    """[T, N] -> [T, N]: -inf for the experts of other groups."""
    grouped = choice.view(len(choice), routing.groups, -1)
    best = grouped.sort(dim=-1, descending=True).values[..., : routing.group_best].sum(-1)
    kept = torch.zeros_like(best, dtype=torch.bool).scatter_(-1, _largest(best, routing.top_groups), True)
    return grouped.masked_fill(~kept[..., None], -torch.inf).view(choice.shape)


def _sparse_mixer(logits: torch.Tensor, experts: torch.Tensor, tolerance: float) -> torch.Tensor:
    """[T, N] and [T, k] -> [T, k]."""
    left, weights = logits, []
    for j in range(experts.shape[1]):
        chosen = experts[:, j : j + 1]
        most = left.gather(-1, chosen)
        far = (most - left) / torch.maximum(logits.abs(), most) > tolerance
        weights.append(torch.softmax(left.masked_fill(far, -torch.inf), dim=-1).gather(-1, chosen))
        left = left.scatter(-1, chosen, -torch.inf)
    return torch.cat(weights, dim=-1)
