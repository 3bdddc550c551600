"""Bad words, bad token ids, and stop tokens before min_tokens: tokens that a row must not choose."""

from collections.abc import Sequence

import numpy as np
import torch

from kernels.api import Prohibitions, SamplingColumns, SamplingOps
from kernels.ops.attention.ragged import Integers
from worker.sampling.sequence import NewSequence, RowStates
from worker.upload import upload

ALWAYS = np.iinfo(np.int32).max
"""Output length up to which tokens are banned from rows with bad words: forever."""


class Table:
    """One item per row, all of one shape: data [rows, n, ...] on the device.

    Rows and shape grow, at least by doubling, when a row or an item does not fit. A smaller item is padded.
    """

    def __init__(self, shape: tuple[int, ...], padding: float, dtype: type, device: torch.device) -> None:
        self._padding, self._dtype = padding, dtype
        self.data = upload(np.zeros((0, *shape), dtype), device)

    def set(self, row: int, values: Sequence[float], shape: tuple[int, ...] | None = None) -> None:
        """Writes an item. shape: None for [number of values]."""
        item = upload(np.array(values, self._dtype), self.data.device).view(shape or len(values))
        self.grow((row + 1, *item.shape))
        self.data[row].fill_(self._padding)
        self.data[row][tuple(map(slice, item.shape))] = item

    def copy(self, row: int, source: int) -> None:
        """Copies the item of row `source`."""
        self.grow((row + 1, *self.data.shape[1:]))
        self.data[row] = self.data[source]

    def grow(self, needed: tuple[int, ...]) -> None:
        """Makes every dimension of the data at least as large as needed."""
        old = self.data
        pairs = list(zip(old.shape, needed, strict=True))
        if any(need > size for size, need in pairs):
            shape = [size if need <= size else max(need, 2 * size) for size, need in pairs]
            self.data = old.new_full(shape, self._padding)
            self.data[tuple(map(slice, old.shape))] = old


class TokenBans(RowStates):
    """Bad words, output and stop tokens of rows. A bad token id is a word of one token."""

    def __init__(
        self, columns: SamplingColumns, vocab_size: int, device: torch.device, ops: SamplingOps
    ) -> None:
        self._positions, self._vocab_size, self._ops = columns["position"], vocab_size, ops
        self._last = Table((0,), 0, np.int32, device)
        self._prefix = Table((0, 0), Prohibitions.ANY, np.int32, device)
        self._outputs = Table((1,), 0, np.int32, device)
        self._stop_ids = Table((0,), 0, np.int32, device)
        self._numbers = Table((5,), 0, np.int32, device)
        self._tables = self._last, self._prefix, self._outputs, self._stop_ids, self._numbers
        # by row: the length of output from which on no token is banned; 0 where none ever is
        self._until = np.zeros(columns.num_rows, np.int64)

    def __contains__(self, row: int) -> bool:
        return bool(self._until[row] > 0)

    @property
    def prohibitions(self) -> Prohibitions:
        """The tables."""
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
        longest = max((len(word) - 1 for word in words), default=0)
        num_longer = sum(len(word) > 1 for word in words)
        # what is before the last token of each word, nearest token first
        padded = (
            word[-2::-1] + [Prohibitions.ANY] * (longest - len(word) + 1) for word in words[:num_longer]
        )
        numbers = [len(words), longest, len(stop_ids), min(sequence.new.min_tokens, ALWAYS), num_longer]
        self._numbers.set(row, numbers)
        self._outputs.set(row, sequence.output_ids)
        self._stop_ids.set(row, stop_ids)
        self._last.set(row, [word[-1] for word in words])
        self._prefix.set(row, [token for prefix in padded for token in prefix], (num_longer, longest))

    def fork_row(self, row: int, source_row: int) -> None:
        self._until[row] = self._until[source_row]
        if row in self:
            for table in self._tables:
                table.copy(row, source_row)

    def remove_row(self, row: int) -> None:
        self._until[row] = 0

    def records_output(self, row: int) -> bool:
        """Returns whether the output of a row is recorded: it has bad words.

        The table of outputs is reallocated as it grows, so a captured step has no such row.
        """
        return bool(self._until[row] == ALWAYS)

    def concerns(self, rows: Integers) -> bool:
        """Returns whether some token may be banned from one of the rows [A]."""
        return bool((self._until[rows] > self._positions[rows]).any())

    def make_room(self, rows: Integers) -> None:
        """Makes room for one more token in the outputs of those rows [A] that have bad words."""
        users = self._until[rows] == ALWAYS
        if users.any():
            self._outputs.grow((0, int(self._positions[rows][users].max()) + 1))

    def apply(self, logits: torch.Tensor, rows: list[int]) -> None:
        """Masks banned tokens of logits [A, V] of rows [A] on a CPU, in place."""
        index = np.array(rows, np.int64)
        if self.concerns(index):
            slots = torch.from_numpy(np.where(self._until[index] > 0, index, -1))
            self._ops.prohibit(logits, slots, torch.from_numpy(self._positions[index]), self.prohibitions)

    def record(self, rows: list[int], tokens: list[int]) -> None:
        """Appends the new tokens [A] of rows [A] to their outputs, on a CPU; negative: there is none."""
        index = np.array(rows, np.int64)
        users = np.flatnonzero(self._until[index] == ALWAYS)
        if len(users):
            self.make_room(index)
            known = torch.tensor([max(tokens[user], 0) for user in users], dtype=torch.int32)
            index = index[users]
            at = torch.from_numpy(index), torch.from_numpy(self._positions[index])
            self._outputs.data[at] = known
