"""Temperature and filters: top_k chooses candidates; the others zero the weights of tokens that are not to be
drawn.

scores [A, W] float32, weights [A, W] float64, one parameter per row -> new weights [A, W] float64. On CUDA:
kernels.triton.sampling.filtered_sample and kernels.triton.sampling.typical_p.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from kernels.ops.sampling.logprobs import ranking

FIRST_WIDTH = 256
GROWTH = 16


def temperature_weights(
    scores: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """Returns probabilities up to a factor, the most probable token having weight 1:

        w_i = exp((x_i - m) / T),   m = the row's largest logit

    scores [A, W] float32, largest [A] float32, temperature [A] float64 > 0 -> [A, W] float64. All sums over
    weights are sequential (cumsum), from the lowest id up: they do not depend on how many zeros a row is
    padded with, nor on the number of threads.

    In [0, 1]; 0 for the score -inf. A row whose largest logit is not finite becomes all NaN, or NaN
    and zero: inverse_cdf finds no token in it. However small the temperature, nothing overflows: the
    exponent is at most 0.
    """
    weights = scores.to(torch.float64)
    weights -= largest[:, None]
    weights /= temperature[:, None]
    return weights.exp_()


def top_k(logits: torch.Tensor, k: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the k highest logits of each row, the lower id first among equals: ids [A, n] int64, ascending,
    and scores [A, n] float32. What follows then works on n candidates instead of V tokens.

    logits: [A, V] float32. k: [A] int64; n: the largest of k, which the caller knows without waiting for the
    device. A row with k < n is padded by its next candidates, with the score -inf.
    """
    ids, rank = ranking(logits, n).sort()
    scores = logits.gather(1, ids).masked_fill_(rank >= k[:, None], -torch.inf)
    return ids, scores


def top_p(scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Keeps the smallest set of highest scores whose weights reach a share of the sum: top_p.

    With i_1, i_2, ... the ids by descending score (lowest id first among equals), the set is i_1 ... i_n with
    the smallest n >= 1 for which

        w_{i_1} + ... + w_{i_n}  >=  share * (w_0 + ... + w_{W-1}),     share in (0, 1)

    A full sort of 152,000 scores takes 12 ms on a CPU core, while the first 256 of them nearly always reach
    the share. So the CPU ranks 256, then 16 times as many, and sorts everything only when that is not enough
    either. Looking whether it is enough costs nothing there; on another device it would be a wait for the
    device, so there the first try is the full sort. All tries add up the same numbers in the same order: the
    result is the same bit for bit.
    """
    width = weights.shape[-1]
    target = share * weights.cumsum(-1)[:, -1]
    tried = FIRST_WIDTH if scores.device.type == "cpu" else width
    while tried < width:
        ids = ranking(scores, tried)
        ranked = weights.gather(1, ids)
        mass = ranked.cumsum(-1)
        if bool((mass[:, -1] >= target).all()):
            return _keep(weights, ids, ranked, mass, target)
        tried *= GROWTH
    ids = ranking(scores, width)
    ranked = weights.gather(1, ids)
    return _keep(weights, ids, ranked, ranked.cumsum(-1), target)


def _keep(
    weights: torch.Tensor, ids: torch.Tensor, ranked: torch.Tensor, mass: torch.Tensor, target: torch.Tensor
) -> torch.Tensor:
    """ids, ranked weights and their sums [A, n]: keeps the first, and others while the sum before is below
    target [A]. Puts what is kept in its place in a row like weights.
    """
    ranked[:, 1:] *= mass[:, :-1] < target[:, None]
    return torch.zeros_like(weights).scatter_(1, ids, ranked)


def min_p(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Zeroes w_i where w_i < share * max_j w_j; share in [0, 1].

    Multiplies by the mask; masked_fill is slower: at 152,000 weights 0.2 ms against 0.55 on a CPU core."""
    return weights * (weights >= (share * weights.amax(-1))[:, None])


def typical_p(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Keeps the tokens whose surprise is closest to the expected one. The most probable token may go.

    With p_i = w_i / sum(w) and the entropy H = -sum(p_i log p_i), tokens are ranked by the distance

        d_i = | -log p_i - H | = | log w_i - sum(w log w) / sum(w) |,   rounded to float32

    smallest first, lowest id first among equals, and the smallest set that reaches `share`, in (0, 1), of the
    sum is kept. Source: Meister, Pimentel, Wiher, Cotterell, "Locally typical sampling", TACL 2023.
    """
    log_weights = weights.log()
    # 0 log 0 = 0: the smallest positive float64 has the logarithm -745, so only log 0 is clamped.
    products = weights * log_weights.clamp(min=-1000.0)
    mean = products.cumsum(-1)[:, -1:] / weights.cumsum(-1)[:, -1:]
    distance = (log_weights - mean).abs_()
    return top_p(-distance.to(torch.float32), weights, share)


class Filter(NamedTuple):
    """Zeroes weights by a column; rows in which it is neutral are left alone."""

    column: str
    filter_weights: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
    """scores [U, W] float32, weights [U, W] float64, parameter [U] float64 -> weights [U, W]."""


FILTERS = (
    Filter("top_p", top_p),
    Filter("min_p", lambda scores, weights, share: min_p(weights, share)),
    Filter("typical_p", lambda scores, weights, share: typical_p(weights, share)),
)
"""In the order in which they apply, behind top_k."""
