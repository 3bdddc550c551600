"""Logit bias: numbers that are added to the logits of some tokens."""

import torch

from kernels.ops.sampling.logits_processors import add_logit_bias
from worker.sampling.batch import NewSequence, SampleBatch


def bias_of(sequence: NewSequence, vocab_size: int) -> dict[int, float]:
    """Returns the bias of tokens. Ids outside the vocabulary are left out."""
    given = sequence.new.sampling.logit_bias.items()
    return {token: bias for token, bias in given if token < vocab_size}


class LogitBias:
    """Token ids and their bias, by row. A worker.sampling.rows.Processor."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._bias: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # ids [1, N], bias [1, N]

    def __contains__(self, row: object) -> bool:
        return row in self._bias

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row."""
        if bias := bias_of(sequence, self._vocab_size):
            self._bias[row] = torch.tensor([list(bias)]), torch.tensor([list(bias.values())])

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the bias of its source."""
        if source_row in self._bias:
            self._bias[row] = self._bias[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._bias.pop(row, None)

    def apply(self, batch: SampleBatch) -> None:
        """Adds the bias to the logits."""
        for user in batch.users(self._bias):
            add_logit_bias(batch.logits, torch.tensor([user]), *self._bias[batch.rows[user]])
