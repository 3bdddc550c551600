"""Tokens that a row's grammar allows; the grammars themselves are in worker.grammar."""

from collections.abc import Sequence

import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.cpu.sampling.bit_masks import BitMasks
from kernels.ops.logits.bitmask import apply_bitmask
from worker.grammar.rows import GrammarRows
from worker.sampling.batch import NewSequence, SampleBatch


class GrammarMask:
    """Masks the tokens that grammars do not allow. A worker.sampling.state.Processor."""

    def __init__(
        self, grammars: GrammarRows, vocab_size: int, kernels: SamplingKernels | None = None
    ) -> None:
        """kernels: compiled ones; None: torch masks."""
        self._grammars = grammars
        self._compiled = BitMasks(kernels, vocab_size) if kernels is not None else None

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
        if not users:
            return
        rows = [batch.rows[user] for user in users]
        if self._compiled is not None:
            masks = [matcher.address for matcher in self._grammars.matchers(rows)]
            self._compiled.apply(batch.logits, users, masks)
        else:
            words = self._grammars.words(rows)
            apply_bitmask(batch.logits, batch.index(users), torch.from_numpy(words))

    def record(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Advances the grammars of rows [A] behind new tokens [A] int64; negative: there is none."""
        if self._grammars.users(rows):
            known = tokens.tolist()
            self._grammars.record(rows, lambda: known)
