"""The candidates that a token is drawn from, and how top_k and temperature make them from logits."""

from dataclasses import dataclass

import torch

from kernels.ops.logits.temperature import temperature_weights
from kernels.ops.sampling.top_k import top_k
from worker.sampling.state import SamplingState


@dataclass(slots=True)
class Candidates:
    """W candidates of each of A rows, in ascending order of their ids. Filters replace the weights."""

    rows: list[int]  # [A]
    ids: torch.Tensor | None  # [A, W] int64; None: the whole vocabulary, W = V
    scores: torch.Tensor  # [A, W] float32: logits
    weights: torch.Tensor  # [A, W] float64: probabilities up to a factor; 0: filtered out


def candidates_of(logits: torch.Tensor, rows: list[int], state: SamplingState) -> Candidates:
    """Returns the unfiltered candidates of rows [A], of which all have a top_k or none has.

    logits: [A, V] float32.
    """
    largest = logits.amax(-1)
    limits = state.top_k[rows]
    widest = int(limits.max())
    ids: torch.Tensor | None = None
    scores = logits
    if widest:
        ids, scores = top_k(logits, torch.from_numpy(limits), widest)
    temperature = torch.from_numpy(state.temperature[rows])
    return Candidates(rows, ids, scores, temperature_weights(scores, largest, temperature))
