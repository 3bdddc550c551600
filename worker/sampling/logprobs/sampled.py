"""Log-probabilities of what rows sample, from the model's logits before the sampler changes them."""

import torch

from pagewire.internal.v1 import engine_pb2
from worker.sampling.logprobs.columns import to_columns
from worker.sampling.logprobs.requests import LogprobWishes
from worker.sampling.logprobs.scores import Scores, score


class SampledScores:
    """Watches one call of Sampler.sample(), piece by piece."""

    def __init__(self, wishes: LogprobWishes) -> None:
        self._wishes = wishes.sampled
        self._scores: list[Scores] = []

    def watches(self, rows: list[int]) -> bool:
        """Whether any of the rows wants to know."""
        return bool(self._members(rows))

    def keep(self, logits: torch.Tensor, rows: list[int]) -> torch.Tensor | None:
        """A copy of the logits [A, V] of those rows [A] that want to know; None: none of them does."""
        members = self._members(rows)
        return logits[torch.tensor(members, device=logits.device)] if members else None

    def add(self, kept: torch.Tensor, rows: list[int], tokens: torch.Tensor) -> None:
        """kept: what keep() gave for these rows. tokens [A]: what they were given; negative: none."""
        members = self._members(rows)
        chosen = tokens[torch.tensor(members, device=tokens.device)].clamp(min=0)
        self._scores.append(score(kept, chosen, [self._wishes[rows[member]] for member in members]))

    def columns(self) -> engine_pb2.LogprobColumns | None:
        """Everything that was added; None: nothing was. Waits for the device."""
        return to_columns([scores.table() for scores in self._scores]) if self._scores else None

    def _members(self, rows: list[int]) -> list[int]:
        return [index for index, row in enumerate(rows) if row in self._wishes] if self._wishes else []
