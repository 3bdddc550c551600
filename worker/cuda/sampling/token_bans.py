"""Bad words, bad token ids and min_tokens on the device: the state of
kernels.triton.sampling.forbid_tokens."""

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers
from kernels.triton.sampling.forbid_tokens import ANY, Prohibitions, forbid_tokens
from worker.cuda.device.upload import upload
from worker.sampling.batch import NewSequence
from worker.sampling.tables import Slots, Table

ALWAYS = np.iinfo(np.int32).max
"""Output length up to which tokens are banned from rows with bad words: forever."""


class TokenBans:
    """A slot holds the bad words, the output and the stop tokens of a row. A
    worker.sampling.state.Processor."""

    def __init__(self, max_num_rows: int, vocab_size: int, device: torch.device) -> None:
        self._vocab_size, self._device = vocab_size, device
        self._slots = Slots(device)
        self._last = Table((0,), 0, torch.int32, device)
        self._prefix = Table((0, 0), ANY, torch.int32, device)
        self._outputs = Table((1,), 0, torch.int32, device)
        self._stop_ids = Table((0,), 0, torch.int32, device)
        self._numbers = Table((5,), 0, torch.int32, device)
        # by row: the length of output from which on no token is banned
        self._until = np.zeros(max_num_rows, np.int64)
        self._tables = (self._last, self._prefix, self._outputs, self._stop_ids, self._numbers)

    @property
    def outputs(self) -> torch.Tensor:
        """The outputs of rows, [S, P] int32."""
        return self._outputs.data

    def __contains__(self, row: object) -> bool:
        return row in self._slots

    def slot(self, row: int) -> int:
        """Returns the row's slot; -1: it has none."""
        return self._slots.get(row, -1)

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row. Sequences and stop ids outside the vocabulary cannot occur and are left out."""
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
        slot = self._slots.take(row)
        longest = max((len(word) - 1 for word in words), default=0)
        num_longer = sum(len(word) > 1 for word in words)
        min_tokens = min(sequence.new.min_tokens, ALWAYS)
        numbers = [len(words), longest, len(stop_ids), min_tokens, num_longer]
        self._numbers.set(slot, self._upload(numbers))
        self._outputs.set(slot, self._upload(sequence.output_ids))
        self._stop_ids.set(slot, self._upload(stop_ids))
        self._last.set(slot, self._upload([word[-1] for word in words]))
        self._set_prefixes(slot, words[:num_longer], longest)

    def output_slot(self, row: int) -> int:
        """Returns the slot in which the output of a row is recorded; -1: the row has no bad words.

        The table of outputs is reallocated as it grows, so a captured step has no such row.
        """
        return self._slots[row] if self._until[row] == ALWAYS else -1

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row as a copy of another."""
        self._until[row] = self._until[source_row]
        if source_row not in self._slots:
            return
        slot, source = self._slots.take(row), self._slots[source_row]
        for table in self._tables:
            table.copy(slot, source)

    def remove_row(self, row: int) -> None:
        """Ends a row."""
        self._slots.remove(row)

    def concerns(self, rows: Integers, positions: Integers) -> bool:
        """Returns whether some token may be banned from one of the rows [A]. positions: [A] output
        lengths."""
        return bool((self._until[rows] > positions).any())

    def make_room(self, rows: Integers, positions: Integers) -> None:
        """Makes room for one more token in the outputs of those rows [A] that have bad words."""
        users = self._until[rows] == ALWAYS
        if users.any():
            self._outputs.widen(int(positions[users].max()) + 1)

    def apply(self, logits: torch.Tensor, slots: torch.Tensor, positions: torch.Tensor) -> None:
        """Masks banned tokens in logits [A, V] float32. slots: [A], -1: none; positions: [A] int32."""
        state = Prohibitions(
            self._last.data,
            self._prefix.data,
            self._outputs.data,
            self._stop_ids.data,
            self._numbers.data,
        )
        forbid_tokens(logits, slots, positions, state)

    def _set_prefixes(self, slot: int, words: list[list[int]], longest: int) -> None:
        """Stores what is before the last token of each word, up to `longest` tokens, nearest token first."""
        prefixes = np.full((len(words), longest), ANY, np.int32)
        for prefix, word in zip(prefixes, words, strict=True):
            prefix[: len(word) - 1] = word[-2::-1]
        self._prefix.set(slot, upload(prefixes, self._device))

    def _upload(self, values: list[int]) -> torch.Tensor:
        return upload(np.array(values, np.int32), self._device)
