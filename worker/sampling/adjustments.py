"""Penalties, bias and allowed tokens of rows on a CPU, and what grammars allow (worker.grammar)."""

from collections.abc import Container

import numpy as np
import torch

from kernels.api import Bitmask, PenaltyHistory, SamplingOps
from worker.grammar.rows import GrammarRows
from worker.sampling.sequence import NewSequence, RowStates


class LogitAdjustments(RowStates):
    """State of the rows that have any. The sampler tells the grammars of rows that begin and end.

    A history is the prompt and the output, or the output alone without a repetition penalty, since the prompt
    then does not count.
    """

    def __init__(self, grammars: GrammarRows, vocab_size: int, ops: SamplingOps) -> None:
        self._grammars, self._vocab_size, self._ops = grammars, vocab_size, ops
        self._histories: dict[int, PenaltyHistory] = {}
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # ids [1, N] int64, bias [1, N] float32
        self._masks: dict[int, Bitmask] = {}

    def __contains__(self, row: int) -> bool:
        return any(row in state for state in (self._histories, self._bias, self._masks, self._grammars))

    def add_row(self, row: int, sequence: NewSequence) -> None:
        words = sequence.allowed(self._vocab_size)
        if words is not None:
            self._masks[row] = Bitmask(words, words.ctypes.data)
        if bias := sequence.bias(self._vocab_size):
            self._bias[row] = torch.tensor([list(bias)]), torch.tensor([list(bias.values())])
        strengths, output = sequence.penalties(), sequence.output_ids
        if strengths is not None:
            counts = np.bincount(np.array(output, np.int64), minlength=self._vocab_size)
            tokens = output if strengths[0] == 1 else sequence.prompt_ids + output
            self._histories[row] = PenaltyHistory(strengths, tokens, counts.astype(np.int32))

    def fork_row(self, row: int, source_row: int) -> None:
        if source_row in self._histories:
            self._histories[row] = self._histories[source_row].copy()
        if source_row in self._bias:
            self._bias[row] = self._bias[source_row]
        if source_row in self._masks:
            self._masks[row] = self._masks[source_row]

    def remove_row(self, row: int) -> None:
        for state in (self._histories, self._bias, self._masks):
            state.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: list[int]) -> None:
        """Changes logits [A, V] of rows [A] in place. A row whose grammar has failed keeps no token."""
        if users := _users(rows, self._histories):
            self._ops.penalize(logits, users, [self._histories[rows[user]] for user in users])
        for user in _users(rows, self._bias):
            self._ops.add_logit_bias(logits, torch.tensor([user]), *self._bias[rows[user]])
        if users := _users(rows, self._masks):
            self._ops.mask(logits, users, [self._masks[rows[user]] for user in users])
        if users := self._grammars.users(rows):
            matchers = self._grammars.matchers([rows[user] for user in users])
            self._ops.mask(logits, users, [Bitmask(each.words, each.address) for each in matchers])

    def record(self, rows: list[int], tokens: list[int]) -> None:
        """Appends new tokens [A] to the outputs of rows [A]; negative: there is none."""
        if self._grammars.users(rows):
            self._grammars.record(rows, lambda: tokens)
        for row, token in zip(rows, tokens, strict=True):
            if row in self._histories:
                self._histories[row].append(max(token, 0))


def _users(rows: list[int], state: Container[int]) -> list[int]:
    """Returns the indexes [U] of those of the rows [A] that have state."""
    return [index for index, row in enumerate(rows) if row in state]
