"""Rows that a program decides itself: those of experts, from what an operation before has
computed."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from kernels.batch import InputBatch
from kernels.cpu.program.program import ROWS, Records
from kernels.cpu.runtime.records import DecideRowsRecord, ProgramRecord

if TYPE_CHECKING:  # it compiles when it is imported
    from kernels.cpu.runtime.thread_pool import Program


class DecidedRows:
    """The record that reads the row counts of others, and which those are."""

    def __init__(self, index: int, record: DecideRowsRecord, counts: torch.Tensor) -> None:
        """index, record: of kernels.cpu.runtime.decide_rows. counts: [N] int64, which the program writes."""
        self.record, self._index, self._counts = record, index, counts
        self._targets: list[tuple[int, int]] = []  # index of a record, and of its count
        self._open: int | None = None

    @contextmanager
    def of(self, number: int) -> Iterator[None]:
        """What is put within has as many rows as counts[number] says when the program is there."""
        self._open = number
        yield
        self._open = None

    def add(self, index: int) -> None:
        """Notes a record that was just put."""
        if self._open is not None:
            self._targets.append((index, self._open))

    def link(self, program: "Program") -> None:
        """Writes down where the records are."""
        from kernels.cpu.runtime.decide_rows import row_targets  # compiles, the first time

        first = self._counts.data_ptr()
        self._pairs = row_targets(
            [
                (ProgramRecord.at(program.address, 1 + index).address, first + 8 * number)
                for index, number in self._targets
            ]
        )
        self.record.targets = self._pairs.ctypes.data

    def update(self, batch: InputBatch, records: Records) -> None:
        records[self._index, ROWS] = len(self._targets)
