"""Which tokens of a step belong to which row, on the host and on a device. Does not import triton."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers


class Saves(NamedTuple):
    """Where a row's state is copied to behind so many tokens of a step; behind 0: nowhere."""

    behind: int
    target: int  # a row
    behind_2: int
    target_2: int


class RowSpan(NamedTuple):
    """The tokens of one row in a step."""

    row: int
    start: int  # position of the first one; 0: the row's state begins with zeros
    length: int
    first: int  # its index in the step
    saves: Saves
    replayed: int  # drafted tokens of the row's last step, which were accepted: its state takes them first
    certain: int  # tokens behind which the row's state stands; those after them are drafted, and logged

    def targets(self, behind: int) -> tuple[int, ...]:
        """Returns the rows to which the state behind so many tokens, at least 1, is copied."""
        saves = self.saves
        pairs = (saves.behind, saves.target), (saves.behind_2, saves.target_2)
        return tuple(target for at, target in pairs if at == behind)


@dataclass(frozen=True)
class Spans:
    """The rows of a step, R of them, in the order of its tokens. A batch that is used again is written in
    place."""

    columns: Integers  # [R, 10], contiguous: see RowSpan, and Saves

    @staticmethod
    def empty(rows: int) -> "Spans":
        """Of so many rows, to be written."""
        return Spans(np.zeros((rows, 10), np.int64))

    def write(self, rows: Integers, starts: Integers, counts: Integers) -> None:
        """rows, starts, counts: [R], of rows whose tokens follow one another. No state is saved, and
        no token is drafted."""
        columns = self.columns
        columns[:, 0], columns[:, 1], columns[:, 2] = rows, starts, counts
        columns[:, 3] = np.cumsum(counts) - counts
        columns[:, 4:9], columns[:, 9] = 0, counts

    def draft(self, drafted: Integers, replayed: Integers) -> None:
        """Says how many tokens of each row, the last ones of this step, are drafted, and how many of its last
        step were accepted. drafted, replayed: [rows], of all rows."""
        rows = self.columns[:, 0]
        self.columns[:, 8] = replayed[rows]
        self.columns[:, 9] -= drafted[rows]

    def save(self, row: int, position: int, target: int) -> None:
        """Has a row's state behind its first `position` tokens, of which a step computes the last one, copied
        to a row. At most two of each row."""
        (entry,) = np.flatnonzero(self.columns[:, 0] == row).tolist()
        columns = self.columns[entry]
        free = 4 if not columns[4] else 6
        assert not columns[free] and 0 < position - columns[1] <= columns[2]
        columns[free : free + 2] = position - columns[1], target

    @property
    def saves(self) -> Integers:
        """[R, 4]: the Saves of each row."""
        saves: Integers = self.columns[:, 4:8]
        return saves

    def __len__(self) -> int:
        """R."""
        return len(self.columns)

    def __iter__(self) -> Iterator[RowSpan]:
        """Each row."""
        for row, start, length, first, *saves, replayed, certain in self.columns.tolist():
            yield RowSpan(row, start, length, first, Saves(*saves), replayed, certain)


@dataclass(frozen=True)
class DeviceSpans:
    """R rows of a step, with padding, at addresses that captured graphs keep. No token is drafted. All are
    int32. Tokens of padding belong to no row: what layers make of them are zeros."""

    rows: torch.Tensor  # [R]
    starts: torch.Tensor  # [R] position of the first token; 0: the row's state begins with zeros
    num_rows: torch.Tensor  # [1] rows from there on are padding
    firsts: torch.Tensor  # [R + 1] index of each row's first token in the step; the number of tokens
    saves: torch.Tensor  # [4, R], rows may be strided: Saves of each row

    @property
    def columns(self) -> tuple[torch.Tensor, ...]:
        """All of them, as kernels take them."""
        return self.rows, self.starts, self.num_rows, self.firsts, self.saves

    def __len__(self) -> int:
        """R."""
        return len(self.rows)


AnySpans = Spans | DeviceSpans
"""The rows of a step: on the host, or on a device."""
