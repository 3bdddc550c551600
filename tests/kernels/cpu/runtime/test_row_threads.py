"""Rows shared by threads: each computed once, by a thread with a scratch of its own."""

import threading

import pytest

from kernels.cpu.compiler.records import Record, i64, record
from kernels.cpu.sampling.api import WORTH_IT, RowThreads


@record
class Job(Record):
    """Nothing that matters."""

    unused: i64 = 0


class Rows:
    """A kernel in Python that remembers its calls."""

    def __init__(self, fails: int = -1) -> None:
        self.calls: list[tuple[int, int, int]] = []
        self.threads: set[int] = set()
        self._fails, self._lock = fails, threading.Lock()

    def __call__(self, job: Job, row: int, count: int, scratch: int) -> None:
        with self._lock:
            self.calls.append((row, count, scratch))
            self.threads.add(threading.get_ident())
        if row == self._fails:
            raise ValueError(f"row {row}")


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("rows", [1, 2, 7, 64])
def test_each_row_once(rows: int, count: int):
    """More threads than rows, and the other way round."""
    kernel, scratches = Rows(), [100 + index for index in range(count)]
    RowThreads(count).run(kernel, Job(), rows, WORTH_IT, scratches)
    found = sorted(row + index for row, number, _ in kernel.calls for index in range(number))
    assert found == [*range(rows)]
    assert {scratch for _, _, scratch in kernel.calls} <= set(scratches)
    assert len(kernel.threads) <= min(count, rows)


@pytest.mark.parametrize(
    ("count", "rows", "values"), [(1, 5, WORTH_IT), (4, 1, WORTH_IT), (4, 5, WORTH_IT - 1)]
)
def test_little_work_is_one_call(count: int, rows: int, values: int):
    """In the calling thread: another one takes longer to wake up."""
    kernel = Rows()
    RowThreads(count).run(kernel, Job(), rows, values, [7] * count)
    assert kernel.calls == [(0, rows, 7)] and kernel.threads == {threading.get_ident()}


def test_an_error_is_raised():
    """Whichever thread meets it."""
    with pytest.raises(ValueError, match="row 3"):
        RowThreads(3).run(Rows(fails=3), Job(), 9, WORTH_IT, [1, 2, 3])


def test_no_rows():
    kernel = Rows()
    RowThreads(2).run(kernel, Job(), 0, WORTH_IT, [1, 2])
    assert [call for call in kernel.calls if call[1]] == []
