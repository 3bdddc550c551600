"""Bad words and bad token ids: sequences of tokens that a row must not complete."""

from typing import Any

import torch

from kernels.ops.logits.token_masks import forbid_tokens
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Slots, Table

ANY = -1  # in a prefix: matches any token, and none
NOTHING = -2  # in a tail: before the first output token; matches no token
NONE = -1  # in place of a token to forbid


class BadTokens:
    """Forbids tokens that would complete a bad word. A bad token id is a word of one token.

    Words of one token, of which there may be as many as tokens, are ids. Any other is stored as its last
    token and the prefix before it, nearest token first, so that it lines up with the tail of the output,
    stored in the same order:

        bad word [5, 8, 3]     last 3   prefix  8   5  ANY ANY
        output ... 5 8                  tail    8   5   ...        -> 3 is forbidden

    Only output counts: a word that begins in the prompt is not forbidden.
    """

    def __init__(self, vocab_size: int, device: torch.device) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._slots = Slots(device)
        self._ids = Table((0,), NONE, torch.int64, device)
        self._last = Table((0,), NONE, torch.int64, device)
        self._prefix = Table((0, 0), ANY, torch.int64, device)
        self._tail = Table((0,), NOTHING, torch.int64, device)

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Words with ids outside the vocabulary cannot occur and are left out."""
        words = [list(word.ids) for word in sequence.new.bad_words]
        words += [[token] for token in sequence.new.sampling.bad_token_ids]
        words = [word for word in words if max(word) < self._vocab_size]
        if not words:
            return
        length = max(1, max(map(len, words)) - 1)
        longer = [word for word in words if len(word) > 1]
        prefixes = [word[-2::-1] + [ANY] * (length - len(word) + 1) for word in longer]
        tail = sequence.output_ids[: -length - 1 : -1]
        tail += [NOTHING] * (length - len(tail))
        slot = self._slots.take(row)
        self._ids.set(slot, self._tensor([word[0] for word in words if len(word) == 1]))
        self._last.set(slot, self._tensor([word[-1] for word in longer]))
        self._prefix.set(slot, self._tensor(prefixes).view(len(longer), length))
        self._tail.set(slot, self._tensor(tail))

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row with the words and output of its source."""
        if source_row in self._slots:
            slot, source = self._slots.take(row), self._slots[source_row]
            for table in (self._ids, self._last, self._prefix, self._tail):
                table.copy(slot, source)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)

    def apply(self, batch: SampleBatch) -> None:
        """Masks the last token of each word whose prefix the output ends with."""
        users = batch.users(self._slots)
        if not users:
            return
        slots = self._slots.index([batch.rows[user] for user in users])
        prefix = self._prefix.gather(slots)
        tail = self._tail.gather(slots)[:, None]
        complete = ((prefix == ANY) | (prefix == tail)).all(-1)
        ids, last = self._ids.gather(slots), self._last.gather(slots)
        tokens, active = torch.cat((ids, last), 1), torch.cat((ids != NONE, complete & (last != NONE)), 1)
        forbid_tokens(batch.logits, batch.index(users), tokens.clamp(min=0), active)

    def _tensor(self, values: list[Any]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)

    def record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Puts the new tokens [A] int64 of rows [A] at the head of their tails."""
        users = [index for index, row in enumerate(rows) if row in self._slots]
        if not users:
            return
        slots = self._slots.index([rows[user] for user in users])
        head = tokens[torch.tensor(users, device=self._device)]
        self._tail.data[slots] = torch.cat((head[:, None], self._tail.gather(slots)[:, :-1]), dim=1)
