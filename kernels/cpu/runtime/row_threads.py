"""Threads that share the rows of an operation, for compiled functions that do not hold the interpreter's
lock. Each row is computed by one thread, as if it were alone."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from kernels.cpu.compiler.records import Record

AnyRecord = TypeVar("AnyRecord", bound=Record)

RowKernel = Callable[[AnyRecord, int, int, int], None]
"""Of a record, the first row, the number of rows, and the address of a thread's scratch."""

WORTH_IT = 1 << 18
"""Values: a thread takes some 50 us to wake up, in which another one reads that many."""


class RowThreads:
    """The calling thread and some more."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._helpers = ThreadPoolExecutor(max(1, count - 1), "rows")

    def run(
        self, kernel: RowKernel[AnyRecord], record: AnyRecord, rows: int, values: int, scratches: list[int]
    ) -> None:
        """kernel(record, row, 1, scratch) for each row. values: of all rows; few are left to one thread.
        scratches: an address for each thread.

        A thread takes the next row when it is free: rows differ in what they cost.
        """
        if self.count == 1 or rows == 1 or values < WORTH_IT:
            kernel(record, 0, rows, scratches[0])
            return
        left = iter(range(rows))

        def take(scratch: int) -> None:
            for row in left:  # a step of an iterator is not interrupted by another thread
                kernel(record, row, 1, scratch)

        helping = [self._helpers.submit(take, scratch) for scratch in scratches[1 : self.count]]
        take(scratches[0])
        for helper in helping:
            helper.result()
