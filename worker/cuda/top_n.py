"""The likeliest tokens of rows, in few compiled sizes."""

import torch

from kernels.ops.sampling.ranking import ranking
from kernels.triton.sampling.top_n import MOST, top_n

USUAL = 32
"""Tokens that are looked for where fewer are wanted: kernels are compiled for this number and MOST, and not
for each that somebody may ask for."""


def top_tokens(logits: torch.Tensor, n: int) -> torch.Tensor:
    """kernels.ops.sampling.ranking: logits [A, V] float32 -> ids [A, n] int64, n >= 1. Beyond MOST torch
    sorts."""
    if n > MOST:
        return ranking(logits, n)
    return top_n(logits, min(USUAL if n <= USUAL else MOST, logits.shape[1]))[:, :n]
