"""Rows that are decided while a program runs, by an operation before: experts have as many rows as tokens are
routed to them.

An operation of a program reads how many rows other records behind it have, and opens these to the threads. No
thread is at any of them yet, since all wait for this operation's end. What their rows were before does not
matter.
"""

import numpy as np
import numpy.typing as npt

from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64
from kernels.cpu.runtime.program import make_ready, run_of
from kernels.cpu.runtime.records import DecideRowsRecord, ProgramRecord, RowTarget


@operation
def decide_rows(record: DecideRowsRecord, first: int, count: int, thread: int) -> None:
    """A unit is a target."""
    run = run_of(ProgramRecord.at(record.address))
    for index in range(first, first + count):
        target = RowTarget.at(record.targets, index)
        behind = ProgramRecord.at(target.record)
        behind.rows = read_i64(target.rows)
        make_ready(behind, run)


def row_targets(targets: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """[N, 2], an array of RowTarget. targets: addresses of records, and of the number of rows of each,
    int64."""
    return np.array(targets, np.int64).reshape(-1, 2)
