"""What the samplers of all devices keep of rows: parameters and positions in columns, and processors."""

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from kernels.ops.sampling.philox_constants import MASK
from worker.sampling.batch import NewSequence

Floats = npt.NDArray[np.float64]
Longs = npt.NDArray[np.int64]


class Processor(Protocol):
    """State by row of something that changes logits before the choice, such as penalties."""

    def __contains__(self, row: object) -> bool:
        """Returns whether the processor may change the row's logits."""

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row."""

    def fork_row(self, row: int, source_row: int) -> None:
        """Begins a row as a copy of another."""

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""


class SamplingState:
    """Rows that sample. A row that is not in use has undefined entries in the columns.

    Parameters are float32 numbers of a message, so float64 and float32 hold them exactly. Columns keep their
    addresses: the kernels of a CPU read them in place, and a CUDA device has a copy of them.
    """

    def __init__(self, max_num_rows: int, vocab_size: int, processors: Sequence[Processor]) -> None:
        """processors: in the order in which they change logits; they do not commute."""
        self._vocab_size, self._processors = vocab_size, processors
        self.temperature: Floats = np.zeros(max_num_rows)  # 0: greedy
        self.top_k: Longs = np.zeros(max_num_rows, np.int64)  # 0: all; below V
        self.top_p: Floats = np.ones(max_num_rows)  # 1: all
        self.min_p: Floats = np.zeros(max_num_rows)  # 0: all
        self.typical_p: Floats = np.ones(max_num_rows)  # 1: all
        self.keys: Longs = np.zeros((max_num_rows, 2), np.int64)  # words of the seed, the low one first
        self.sequence_index: Longs = np.zeros(max_num_rows, np.int64)
        self.positions = array("q", bytes(8 * max_num_rows))
        """Output tokens of each row, sampled ones of steps in flight included."""
        self.position_column: Longs = np.frombuffer(self.positions, np.int64)
        """The same memory."""
        self._columns = (self.temperature, self.top_k, self.top_p, self.min_p, self.typical_p, self.keys)

    def add_row(self, row: int, sequence: NewSequence) -> None:
        """Begins a row; its next token's position is the number of tokens of output that it has.

        Raises ValueError when allowed_token_ids has no token of the vocabulary.
        """
        self.remove_row(row)
        top_k = int(sequence.scalar("top_k", 0))
        self.temperature[row] = sequence.scalar("temperature", 1.0)
        self.top_k[row] = top_k if top_k < self._vocab_size else 0
        self.top_p[row] = sequence.scalar("top_p", 1.0)
        self.min_p[row] = sequence.scalar("min_p", 0.0)
        self.typical_p[row] = sequence.scalar("typical_p", 1.0)
        seed = sequence.new.sampling.seed
        self.keys[row] = seed & MASK, seed >> 32
        self.sequence_index[row] = sequence.new.sequence_index
        self.positions[row] = len(sequence.output_ids)
        for processor in self._processors:
            processor.add_row(row, sequence)

    def fork_row(self, row: int, source_row: int, sequence_index: int) -> None:
        """Begins a row as a copy of another, with random numbers of its own."""
        self.remove_row(row)
        for column in self._columns:
            column[row] = column[source_row]
        self.sequence_index[row] = sequence_index
        self.positions[row] = self.positions[source_row]
        for processor in self._processors:
            processor.fork_row(row, source_row)

    def remove_row(self, row: int) -> None:
        """Ends a row; a row that is not in use is ignored."""
        for processor in self._processors:
            processor.remove_row(row)

    def is_processed(self, row: int) -> bool:
        """Returns whether some processor may change the row's logits."""
        return any(row in processor for processor in self._processors)

    def advance(self, rows: Iterable[int]) -> None:
        """Counts one token more of each of the rows."""
        for row in rows:
            self.positions[row] += 1
