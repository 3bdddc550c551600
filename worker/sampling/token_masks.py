"""Tokens that must or must not be chosen: allowed ids, and stop tokens before min_tokens.

A mask of forbidden tokens (early stop tokens here, bad tokens in bad_tokens.py) that would leave a row no
token at all is not applied in that step, so that every sequence can continue: allowed tokens take precedence
over bad tokens, and both over early stop tokens.
"""

import torch

from kernels.ops.logits.token_masks import allow_tokens, forbid_tokens
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Slots, Table


class AllowedTokens:
    """The only tokens that a row may choose, where it has such a list."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._slots = Slots(device)
        self._token_ids = Table((0,), 0, torch.int64, device)

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Raises ValueError when the vocabulary has none of the tokens."""
        allowed = sequence.new.sampling.allowed_token_ids
        if not allowed:
            return
        token_ids = [token for token in allowed if token < self._vocab_size]
        if not token_ids:
            raise ValueError(f"sampling.allowed_token_ids: none is below the vocabulary's {self._vocab_size}")
        self._token_ids.set(
            self._slots.take(row), torch.tensor(token_ids, device=self._token_ids.data.device)
        )

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the tokens of its source."""
        if source_row in self._slots:
            self._token_ids.copy(self._slots.take(row), self._slots[source_row])

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)

    def apply(self, batch: SampleBatch) -> None:
        """Masks the tokens that are not allowed."""
        users = batch.users(self._slots)
        if users:
            slots = self._slots.index([batch.rows[user] for user in users])
            allow_tokens(batch.logits, batch.index(users), self._token_ids.gather(slots))


class MinTokens:
    """Stop tokens of rows whose output is shorter than min_tokens."""

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._slots = Slots(device)
        self._stop_ids = Table((0,), 0, torch.int64, device)
        self._min_tokens: dict[int, int] = {}

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Stop ids outside the vocabulary cannot occur and are left out."""
        stop_ids = [token for token in sequence.new.stop_token_ids if token < self._vocab_size]
        if stop_ids and len(sequence.output_ids) < sequence.new.min_tokens:
            self._stop_ids.set(
                self._slots.take(row), torch.tensor(stop_ids, device=self._stop_ids.data.device)
            )
            self._min_tokens[row] = sequence.new.min_tokens

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the stop tokens and minimum of its source."""
        if source_row in self._slots:
            self._stop_ids.copy(self._slots.take(row), self._slots[source_row])
            self._min_tokens[row] = self._min_tokens[source_row]

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)
        self._min_tokens.pop(row, None)

    def apply(self, batch: SampleBatch) -> None:
        """Masks the stop tokens of rows that are too short, and drops the rows that are long enough."""
        for user in batch.users(self._slots):
            if batch.positions[user] >= self._min_tokens[batch.rows[user]]:
                self.remove_row(batch.rows[user])
        users = batch.users(self._slots)
        if users:
            stop_ids = self._stop_ids.gather(self._slots.index([batch.rows[user] for user in users]))
            always = torch.ones_like(stop_ids, dtype=torch.bool)
            forbid_tokens(batch.logits, batch.index(users), stop_ids, always)
