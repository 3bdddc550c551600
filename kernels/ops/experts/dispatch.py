"""The experts of each token (see kernels.ops.experts.routing). Pairs of both, sorted by expert, so that an
expert's weights are read once for all its tokens. What experts take, multiplied by the weights of pairs, and
the weighted sum of what they give.

    weigh:    out[places[t, j]] = x[t] * weights[t, j]
    combine:  out[t] = sum_j weights[t, j] * y[places[t, j]]  +  sigmoid(gate[t]) * shared[t]

T tokens have k experts each: P = T * k pairs. Pair (t, j) is numbered t * k + j, and pairs of one expert stay
in that order. weights: [T, k] float32; places: [T, k] int64, where each pair is. Products and sums are
float32, over j in ascending order, rounded once: they do not depend on other tokens.

logits: [T, N] float32; correction: [N] float32 or None. A token's choice, the best expert first, depends on
its own logits alone.

Bytes moved per token: route reads N and writes 2 k; weigh reads E and writes k * E; combine reads (k + 1) * E
and writes E.
"""

from typing import NamedTuple

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


class Dispatch(NamedTuple):
    """The order of the T * k pairs."""

    tokens: torch.Tensor  # [T * k] int64: the token of each pair, sorted by expert
    places: torch.Tensor  # [T, k] int64: where each pair is in that order
    counts: torch.Tensor  # [N] int64: pairs of each expert
    experts: torch.Tensor  # [T, k] int64: the expert of each pair, by token


def dispatch(experts: torch.Tensor, num_experts: int) -> Dispatch:
    """Returns the order. Nothing of it is read by the host."""
    flat = experts.flatten()
    order = flat.argsort(stable=True)
    places = torch.empty_like(order)
    places[order] = torch.arange(len(order), device=order.device)
    counts = torch.zeros(num_experts, dtype=torch.int64, device=flat.device)
    counts.scatter_add_(0, flat, torch.ones_like(flat))
    return Dispatch(order // experts.shape[1], places.view(experts.shape), counts, experts)


def weigh(x: torch.Tensor, weights: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """Returns [T * k, E], of x's dtype, sorted by expert."""
    weighted = (x.float()[:, None] * weights[..., None]).to(x.dtype)
    out = x.new_empty((places.numel(), x.shape[1]))
    out[places.flatten()] = weighted.flatten(0, 1)
    return out


def or_ones(weights: torch.Tensor | None, places: torch.Tensor) -> torch.Tensor:
    """Returns the weights of pairs [T, k]."""
    if weights is not None:
        return weights
    return torch.ones(places.shape, dtype=torch.float32, device=places.device)


def combine(
    y: torch.Tensor,
    weights: torch.Tensor | None,
    places: torch.Tensor,
    shared: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """Returns [T, E], of y's dtype. weights: None stands for ones."""
    weights = or_ones(weights, places)
    total = y[places[:, 0]].float() * weights[:, :1]
    for j in range(1, weights.shape[1]):
        total = total + y[places[:, j]].float() * weights[:, j : j + 1]
    if shared is not None:
        added = shared.float()
        total = total + (added if gate is None else added * torch.sigmoid(gate)[:, None])
    return total.to(y.dtype)
