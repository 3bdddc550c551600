"""Which tokens of a step belong to which row. Needs no torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.ops.attention.ragged import Integers


class RowSpan(NamedTuple):
    """The tokens of one row in a step."""

    row: int
    start: int  # position of the first one; 0: the row's state begins with zeros
    length: int
    first: int  # its index in the step


@dataclass(frozen=True)
class Spans:
    """The rows of a step, R of them, in the order of its tokens. A batch that is used again is written in
    place."""

    columns: Integers  # [R, 4], contiguous: see RowSpan

    @staticmethod
    def empty(rows: int) -> "Spans":
        """Of so many rows, to be written."""
        return Spans(np.zeros((rows, 4), np.int64))

    def write(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """rows, starts, counts: [R], of rows whose tokens follow one another."""
        columns = self.columns
        columns[:, 0], columns[:, 1], columns[:, 2] = rows, starts, counts
        columns[:, 3] = np.cumsum(counts) - counts

    def __len__(self) -> int:
        """R."""
        return len(self.columns)

    def __iter__(self) -> Iterator[RowSpan]:
        """Each row."""
        return (RowSpan(*columns) for columns in self.columns.tolist())
