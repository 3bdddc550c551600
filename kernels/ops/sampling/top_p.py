"""Keeps the smallest set of highest scores whose weights reach a share of the whole; zeroes the rest.

With i_1, i_2, ... the ids by descending score (lowest id first among equals), the set is i_1 ... i_n
with the smallest n >= 1 for which

    w_{i_1} + ... + w_{i_n}  >=  share * (w_0 + ... + w_{W-1})

scores [A, W] float32, weights [A, W] float64, share [A] float64 in (0, 1) -> new weights [A, W].

A full sort of 152,000 scores takes 12 ms on a CPU core, while the first 256 of them nearly always
reach the share. So the CPU ranks 256, then 16 times as many, and sorts everything only when that is
not enough either. Looking whether it is enough costs nothing there; on another device it would be a
wait for the device, so there the first try is the full sort. All tries add up the same numbers in the
same order: the result is the same bit for bit.
"""

from itertools import accumulate

import torch

from kernels.ops.sampling.ranking import ranking, ranking_reference

FIRST_WIDTH = 256
GROWTH = 16


def top_mass_reference(scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The formula: adds weights up until the target is reached."""
    result = torch.zeros_like(weights)
    order = ranking_reference(scores, scores.shape[-1]).tolist()
    for a, row in enumerate(weights.tolist()):
        target = share[a].item() * list(accumulate(row))[-1]  # sum() may compensate, from Python 3.12 on
        mass = 0.0
        for token in order[a]:
            result[a, token] = row[token]
            mass += row[token]
            if mass >= target:
                break
    return result


def top_mass(scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Dispatches on the device."""
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
