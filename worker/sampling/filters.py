"""Filters of weights: top_p, min_p, typical_p. (top_k makes the candidates and is not one of them.)"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from kernels.ops.sampling.min_p import min_p
from kernels.ops.sampling.top_p import top_mass
from kernels.ops.sampling.typical_p import typical_p
from worker.sampling.candidates import Candidates
from worker.sampling.state import Floats, SamplingState

FilterWeights = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""scores [U, W] float32, weights [U, W] float64, parameter [U] float64 -> weights [U, W]."""


class Filter(NamedTuple):
    """Zeroes weights by one parameter; rows that have the neutral one are left alone."""

    column: Floats  # of worker.sampling.state
    neutral: float
    filter_weights: FilterWeights

    def apply(self, candidates: Candidates) -> None:
        """Replaces the weights of the rows that are filtered."""
        parameter = self.column[candidates.rows]
        users = np.flatnonzero(parameter != self.neutral)
        if not len(users):
            return
        scores, weights, parameters = candidates.scores, candidates.weights, torch.from_numpy(parameter)
        if len(users) == len(parameter):
            candidates.weights = self.filter_weights(scores, weights, parameters)
        else:
            index = torch.from_numpy(users)
            weights[index] = self.filter_weights(scores[index], weights[index], parameters[index])


def filters_of(state: SamplingState) -> tuple[Filter, ...]:
    """Returns the filters in the order in which they apply."""
    return (
        Filter(state.top_p, 1.0, top_mass),
        Filter(state.min_p, 0.0, lambda scores, weights, share: min_p(weights, share)),
        Filter(state.typical_p, 1.0, lambda scores, weights, share: typical_p(weights, share)),
    )
