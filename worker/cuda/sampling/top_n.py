"""The most probable tokens of rows, in few compiled sizes."""

import torch

from kernels.ops.sampling.ranking import ranking
from kernels.triton.sampling.top_n import MOST, top_n

USUAL = 32
"""Requests for fewer tokens compute this many: kernels are compiled for this number and MOST, and not for
each number that a request may name."""


def top_tokens(logits: torch.Tensor, n: int) -> torch.Tensor:
    """Returns the ids [A, n] int64 of the n >= 1 highest of logits [A, V] float32, as
    kernels.ops.sampling.ranking does. Above MOST, torch sorts."""
    if n > MOST:
        return ranking(logits, n)
    return top_n(logits, min(USUAL if n <= USUAL else MOST, logits.shape[1]))[:, :n]
