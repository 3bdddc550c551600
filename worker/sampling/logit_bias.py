"""Logit bias: numbers that are added to the logits of some tokens."""

import torch

from kernels.ops.logits.logit_bias import add_logit_bias
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Slots, Table


class LogitBias:
    """Token ids and their bias, by row."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots = Slots(device)
        self._token_ids = Table((0,), 0, torch.int64, device)
        self._bias = Table((0,), 0.0, torch.float32, device)

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Ids outside the vocabulary are left out."""
        bias = sequence.new.sampling.logit_bias
        token_ids = [token for token in bias if token < self._vocab_size]
        if token_ids:
            slot = self._slots.take(row)
            self._token_ids.set(slot, torch.tensor(token_ids, device=self._device))
            self._bias.set(slot, torch.tensor([bias[token] for token in token_ids], device=self._device))

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the bias of its source."""
        if source_row in self._slots:
            slot, source = self._slots.take(row), self._slots[source_row]
            self._token_ids.copy(slot, source)
            self._bias.copy(slot, source)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)

    def apply(self, batch: SampleBatch) -> None:
        """Adds the bias to the logits."""
        users = batch.users(self._slots)
        if users:
            slots = self._slots.index([batch.rows[user] for user in users])
            token_ids, bias = self._token_ids.gather(slots), self._bias.gather(slots)
            add_logit_bias(batch.logits, batch.index(users), token_ids, bias)
