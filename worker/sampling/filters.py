"""Filters of the weights: top_p, min_p, typical_p. (top_k is not one of them: it makes the candidates.)"""

from abc import ABC, abstractmethod
from typing import ClassVar

import torch

from kernels.ops.sampling.min_p import min_p
from kernels.ops.sampling.top_p import top_mass
from kernels.ops.sampling.typical_p import typical_p
from worker.sampling.batch import NewSequence
from worker.sampling.candidates import Candidates
from worker.sampling.tables import RowScalars


class Filter(ABC):
    """Zeroes weights by one parameter, a share; rows that have the neutral one are left alone."""

    name: ClassVar[str]
    neutral: ClassVar[float]

    def __init__(self, max_num_rows: int, device: torch.device) -> None:
        self._share = RowScalars(max_num_rows, self.neutral, torch.float64, device)

    def __contains__(self, row: object) -> bool:
        return row in self._share.users

    @property
    def shares(self) -> torch.Tensor:
        """[max_num_rows] float64: of all rows."""
        return self._share.values

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Takes the parameter."""
        self._share.set(row, sequence.scalar(self.name, self.neutral))

    def fork_row(self, row: int, source_row: int) -> None:
        """The same parameter."""
        self._share.copy(row, source_row)

    def remove_row(self, row: int) -> None:
        """No longer a user."""
        self._share.remove(row)

    def apply(self, candidates: Candidates) -> None:
        """Replaces the users' weights."""
        users = [index for index, row in enumerate(candidates.rows) if row in self._share.users]
        if not users:
            return
        scores, weights = candidates.scores, candidates.weights
        if len(users) == len(candidates.rows):
            candidates.weights = self._filter(scores, weights, self._share.gather(candidates.row_index))
        else:
            index = torch.tensor(users, device=weights.device)
            share = self._share.gather(candidates.row_index[index])
            weights[index] = self._filter(scores[index], weights[index], share)

    @abstractmethod
    def _filter(self, scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        """scores [U, W] float32, weights [U, W] float64, share [U] float64 -> weights [U, W]."""


class TopP(Filter):
    """The likeliest tokens that reach a share of the mass."""

    name, neutral = "top_p", 1.0

    def _filter(self, scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        return top_mass(scores, weights, share)


class MinP(Filter):
    """The tokens that reach a share of the likeliest one's probability."""

    name, neutral = "min_p", 0.0

    def _filter(self, scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        del scores
        return min_p(weights, share)


class TypicalP(Filter):
    """The most typical tokens that reach a share of the mass."""

    name, neutral = "typical_p", 1.0

    def _filter(self, scores: torch.Tensor, weights: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
        del scores
        return typical_p(weights, share)
