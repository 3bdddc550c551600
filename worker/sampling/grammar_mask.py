"""Tokens that a row's grammar allows; the grammars themselves are in worker.grammar."""

from collections.abc import Sequence

import torch

from kernels.ops.logits.bitmask import apply_bitmask
from worker.grammar.rows import GrammarRows
from worker.sampling.batch import NewSequence, SampleBatch


class GrammarMask:
    """Masks the tokens that grammars do not allow. A worker.sampling.state.Processor."""

    def __init__(self, grammars: GrammarRows) -> None:
        self._grammars = grammars

    def __contains__(self, row: object) -> bool:
        return row in self._grammars

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row."""
        self._grammars.add_row(row, sequence.new, sequence.prompt_ids, sequence.output_ids)

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row where the grammar of its source is."""
        self._grammars.fork_row(row, source_row, 0)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._grammars.remove_row(row)

    def apply(self, batch: SampleBatch) -> None:
        """Masks what grammars do not allow. A row whose grammar has failed keeps no token."""
        users = self._grammars.users(batch.rows)
        if users:
            words = self._grammars.words([batch.rows[user] for user in users])
            apply_bitmask(batch.logits, batch.index(users), torch.from_numpy(words))

    def record(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Advances the grammars of rows [A] behind new tokens [A] int64; negative: there is none."""
        if self._grammars.users(rows):
            known = tokens.tolist()
            self._grammars.record(rows, lambda: known)
