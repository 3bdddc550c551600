"""Tokens that a row may choose: those of a list, and those that its grammar allows (worker.grammar)."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from kernels.cpu.sampling.api import SamplingKernels
from kernels.ops.sampling.logits_processors import apply_bitmask
from worker.grammar.rows import GrammarRows
from worker.sampling.batch import NewSequence, SampleBatch

Words = npt.NDArray[np.int32]


def allowed_words(sequence: NewSequence, vocab_size: int) -> Words | None:
    """Returns the allowed tokens, bit i of word w for token 32 w + i; None: all tokens.

    Raises ValueError when the vocabulary has none of the tokens.
    """
    allowed = sequence.new.sampling.allowed_token_ids
    if not allowed:
        return None
    token_ids = [token for token in allowed if token < vocab_size]
    if not token_ids:
        raise ValueError(f"sampling.allowed_token_ids: none is below the vocabulary's {vocab_size}")
    mask = np.zeros(-vocab_size % 32 + vocab_size, np.uint8)
    mask[token_ids] = 1
    return np.packbits(mask, bitorder="little").view(np.int32)


class AllowedTokens:
    """Masks all other tokens. A worker.sampling.rows.Processor of the lists; the sampler tells the grammars
    of rows that begin and end."""

    def __init__(self, grammars: GrammarRows, vocab_size: int, kernels: SamplingKernels | None) -> None:
        """kernels: compiled ones; None: torch masks."""
        self._grammars, self._vocab_size, self._kernels = grammars, vocab_size, kernels
        self._words: dict[int, Words] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._words or row in self._grammars

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Raises ValueError when the vocabulary has none of the tokens."""
        words = allowed_words(sequence, self._vocab_size)
        if words is not None:
            self._words[row] = words

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the tokens of its source."""
        if source_row in self._words:
            self._words[row] = self._words[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._words.pop(row, None)

    def apply(self, batch: SampleBatch) -> None:
        """Masks what lists and grammars leave out. A row whose grammar has failed keeps no token."""
        if users := batch.users(self._words):
            words = [self._words[batch.rows[user]] for user in users]
            if self._kernels is not None:
                self._kernels.mask(batch.logits, users, [mask.ctypes.data for mask in words])
            else:
                _mask(batch.logits, users, np.stack(words))
        if users := self._grammars.users(batch.rows):
            rows = [batch.rows[user] for user in users]
            if self._kernels is not None:
                masks = [matcher.address for matcher in self._grammars.matchers(rows)]
                self._kernels.mask(batch.logits, users, masks)
            else:
                _mask(batch.logits, users, self._grammars.words(rows))

    def record(self, rows: Sequence[int], tokens: torch.Tensor) -> None:
        """Advances the grammars of rows [A] behind new tokens [A] int64; negative: there is none."""
        if self._grammars.users(rows):
            known = tokens.tolist()
            self._grammars.record(rows, lambda: known)


def _mask(logits: torch.Tensor, users: list[int], words: Words) -> None:
    apply_bitmask(logits, torch.tensor(users), torch.from_numpy(words))
