"""Locally typical sampling: keeps the tokens whose surprise is closest to the expected one.

With p_i = w_i / sum(w) and the entropy H = -sum(p_i log p_i), tokens are ranked by the distance

    d_i = | -log p_i - H |,   rounded to float32, smallest first, lowest id first among equals

and the smallest set of them that reaches `share` of the mass is kept. The most probable token may go.

In terms of weights, log p_i = log w_i - log sum(w), so d_i = | log w_i - sum(w log w) / sum(w) |.

Source: Meister, Pimentel, Wiher, Cotterell, "Locally typical sampling", TACL 2023.
"""

import math

import torch

from kernels.ops.sampling.top_p import top_mass, top_mass_reference


def typical_p_reference(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """The formula on probabilities, as in the paper."""
    distances = []
    for row in weights.tolist():
        p = [w / sum(row) for w in row]
        entropy = -sum(x * math.log(x) for x in p if x > 0)
        distances.append([abs(-math.log(x) - entropy) if x > 0 else math.inf for x in p])
    return top_mass_reference(-torch.tensor(distances, dtype=torch.float32), weights, share)


def typical_p(weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """weights [A, W] float64, share [A] float64 in (0, 1) -> new weights [A, W] float64."""
    log_weights = weights.log()
    # 0 log 0 = 0: the smallest positive float64 has the logarithm -745, so only log 0 is clamped.
    products = weights * log_weights.clamp(min=-1000.0)
    mean = products.cumsum(-1)[:, -1:] / weights.cumsum(-1)[:, -1:]
    distance = (log_weights - mean).abs_()
    return top_mass(-distance.to(torch.float32), weights, share)
