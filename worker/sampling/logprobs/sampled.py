"""Log-probabilities of what rows sample, from the model's logits before the sampler changes them."""

from collections.abc import Mapping

import torch

from pagewire.internal.v1 import engine_pb2
from worker.sampling.logprobs.columns import to_columns
from worker.sampling.logprobs.requests import LogprobCandidates
from worker.sampling.logprobs.scores import Scores, score


class SampledScores:
    """Scores what one call of Sampler.sample() chooses, piece by piece."""

    def __init__(self, requests: Mapping[int, LogprobCandidates]) -> None:
        """requests: rows whose samples are scored, and with which candidates."""
        self._requests = requests
        self._scores: list[Scores] = []

    def watches(self, rows: list[int]) -> bool:
        """Returns whether any of the rows is scored."""
        return bool(self._members(rows))

    def keep(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor | None:
        """Returns a copy of the logits [A, V] of those rows [A] that are scored; None: none is."""
        members = self._members(rows)
        return logits[torch.tensor(members, device=logits.device)] if members else None

    def add(self, kept: torch.Tensor, rows: list[int], tokens: torch.Tensor) -> None:
        """Scores tokens [A] of rows [A]; negative: no token. kept: what keep() returned for these rows."""
        members = self._members(rows)
        chosen = tokens[torch.tensor(members, device=tokens.device)].clamp(min=0)
        self._scores.append(score(kept, chosen, [self._requests[rows[member]] for member in members]))

    def columns(self) -> engine_pb2.LogprobColumns | None:
        """Returns everything that was added; None: nothing was. Waits for the device."""
        return to_columns([scores.table() for scores in self._scores]) if self._scores else None

    def _members(self, rows: list[int]) -> list[int]:
        return [index for index, row in enumerate(rows) if row in self._requests] if self._requests else []
