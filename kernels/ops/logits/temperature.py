"""Logits to weights: probabilities up to a factor, the most probable token having weight 1.

    w_i = exp((x_i - m) / T),   m = the row's largest logit

in float64. All sums over weights are sequential (cumsum), from the lowest id up: they do not depend
on how many zeros a row is padded with, nor on the number of threads.
"""

import math

import torch


def temperature_weights_reference(
    scores: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """The formula, one score at a time."""
    rows = zip(scores.tolist(), largest.tolist(), temperature.tolist(), strict=True)
    weights = [[math.exp((x - m) / t) for x in row] for row, m, t in rows]
    return torch.tensor(weights, dtype=torch.float64, device=scores.device)


def temperature_weights(
    scores: torch.Tensor, largest: torch.Tensor, temperature: torch.Tensor
) -> torch.Tensor:
    """scores [A, W] float32, largest [A] float32, temperature [A] float64 > 0 -> [A, W] float64.

    In [0, 1]; 0 for the score -inf. A row whose largest logit is not finite becomes all NaN, or NaN
    and zero: inverse_cdf finds no token in it. However small the temperature, nothing overflows: the
    exponent is at most 0.
    """
    weights = scores.to(torch.float64)
    weights -= largest[:, None]
    weights /= temperature[:, None]
    return weights.exp_()
