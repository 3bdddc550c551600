"""Drafts of a simulated device: its own next tokens, a share of which is spoiled.

A draft is right where mix(token's hash) mod 100 is below the acceptance in percent, so that the same tokens
are always right, and wrong ones follow right ones as in a real draft. A row with a grammar is not drafted
for: its next tokens are known only once its grammar has followed them.
"""

from collections.abc import Sequence

import numpy as np

from pagewire_simulated.tokens import GAMMA, TokenSource, mix
from worker.speculation.drafter import Drafter
from worker.step.rows import RowTable


class SimulatedDrafter(Drafter):
    """Drafts as the simulated device samples."""

    def __init__(self, rows: RowTable, tokens: TokenSource, acceptance: int) -> None:
        """acceptance: percent of drafts that are right."""
        self._rows, self._tokens, self._acceptance = rows, tokens, acceptance

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._draft_row(row, length) for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        """Nothing is kept by row."""

    def _draft_row(self, row: int, most: int) -> list[int]:
        if row in self._tokens.grammars:
            return []
        first = int(self._rows.num_tokens[row] - self._rows.prompt_lens[row])
        positions = np.arange(first, first + most)
        tokens = np.maximum(self._tokens.sample(np.full(most, row), positions), 0).tolist()
        return [
            token if mix(token + GAMMA * (position + 1)) % 100 < self._acceptance else self._spoiled(token)
            for token, position in zip(tokens, positions.tolist(), strict=True)
        ]

    def _spoiled(self, token: int) -> int:
        return (token + 1) % self._rows.vocab_size
