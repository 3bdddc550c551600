"""Bad words, bad token ids, and stop tokens before min_tokens: tokens that a row must not choose."""

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.ops.sampling.columns import SamplingColumns
from kernels.ops.sampling.token_masks import ANY, Prohibitions, prohibit
from worker.sampling.batch import NewSequence, SampleBatch
from worker.sampling.tables import Table, TableRows

ALWAYS = np.iinfo(np.int32).max
"""Output length up to which tokens are banned from rows with bad words: forever."""


class TokenBans(TableRows):
    """A slot holds the bad words, the output and the stop tokens of a row. A bad token id is a word of one
    token."""

    def __init__(self, columns: SamplingColumns, vocab_size: int, device: torch.device) -> None:
        self._positions, self._vocab_size = columns["position"], vocab_size
        self._last = Table((0,), 0, torch.int32, device)
        self._prefix = Table((0, 0), ANY, torch.int32, device)
        self._outputs = Table((1,), 0, torch.int32, device)
        self._stop_ids = Table((0,), 0, torch.int32, device)
        self._numbers = Table((5,), 0, torch.int32, device)
        super().__init__(device, self._last, self._prefix, self._outputs, self._stop_ids, self._numbers)
        # by row: the length of output from which on no token is banned
        self._until = np.zeros(columns.num_rows, np.int64)

    @property
    def prohibitions(self) -> Prohibitions:
        """The tables by slot."""
        return Prohibitions(*(table.data for table in self._tables))

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Words and stop ids outside the vocabulary cannot occur and are left out."""
        words = [list(word.ids) for word in sequence.new.bad_words]
        words += [[token] for token in sequence.new.sampling.bad_token_ids]
        words = [word for word in words if max(word) < self._vocab_size]
        words.sort(key=lambda word: len(word) == 1)  # those with a prefix come first
        stop_ids = [token for token in sequence.new.stop_token_ids if token < self._vocab_size]
        if len(sequence.output_ids) >= sequence.new.min_tokens:
            stop_ids = []
        self._until[row] = ALWAYS if words else sequence.new.min_tokens if stop_ids else 0
        if not words and not stop_ids:
            return
        slot = self.slots.take(row)
        longest = max((len(word) - 1 for word in words), default=0)
        num_longer = sum(len(word) > 1 for word in words)
        # what is before the last token of each word, nearest token first
        prefixes = [word[-2::-1] + [ANY] * (longest - len(word) + 1) for word in words[:num_longer]]
        numbers = [len(words), longest, len(stop_ids), min(sequence.new.min_tokens, ALWAYS), num_longer]
        self._numbers.set(slot, self.upload(numbers, np.int32))
        self._outputs.set(slot, self.upload(sequence.output_ids, np.int32))
        self._stop_ids.set(slot, self.upload(stop_ids, np.int32))
        self._last.set(slot, self.upload([word[-1] for word in words], np.int32))
        self._prefix.set(slot, self.upload(prefixes, np.int32).view(num_longer, longest))

    def fork_row(self, row: int, source_row: int) -> None:
        super().fork_row(row, source_row)
        self._until[row] = self._until[source_row]

    def output_slot(self, row: int) -> int:
        """Returns the slot in which the output of a row is recorded; -1: the row has no bad words.

        The table of outputs is reallocated as it grows, so a captured step has no such row.
        """
        return self.slots[row] if self._until[row] == ALWAYS else -1

    def concerns(self, rows: Integers) -> bool:
        """Returns whether some token may be banned from one of the rows [A]."""
        return bool((self._until[rows] > self._positions[rows]).any())

    def make_room(self, rows: Integers) -> None:
        """Makes room for one more token in the outputs of those rows [A] that have bad words."""
        users = self._until[rows] == ALWAYS
        if users.any():
            self._outputs.widen(int(self._positions[rows][users].max()) + 1)

    def apply(self, batch: SampleBatch) -> None:
        """Masks banned tokens on a CPU."""
        rows = np.array(batch.rows, np.int64)
        if self.concerns(rows):
            slots = torch.tensor([self.slots.get(row, -1) for row in batch.rows])
            prohibit(batch.logits, slots, torch.from_numpy(self._positions[rows]), self.prohibitions)

    def record(self, rows: list[int], tokens: torch.Tensor) -> None:
        """Appends the new tokens [A] int64 of rows [A] to their outputs, on a CPU."""
        users = [index for index, row in enumerate(rows) if self._until[row] == ALWAYS]
        if not users:
            return
        self.make_room(np.array(rows, np.int64))
        slots = self.slots.index([rows[user] for user in users])
        positions = torch.from_numpy(self._positions[[rows[user] for user in users]])
        self._outputs.data[slots, positions] = tokens[users].to(torch.int32)
