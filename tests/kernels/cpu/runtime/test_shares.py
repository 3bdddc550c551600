"""How threads share the units of a record: Python runs the kernel's own functions for several threads in any
order; each unit is taken exactly once."""

import random

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.runtime import program as module  # noqa: E402
from kernels.cpu.runtime.program import make_ready, next_unit, run_of  # noqa: E402
from kernels.cpu.runtime.records import ProductRecord, ProgramRecord  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

HALF = 22


class Memory:
    """A record of a program."""

    def __init__(self, rows: int, grain: int, columns: int = 0) -> None:
        self.words = np.zeros(ProgramRecord.size() // 8, np.int64)
        self.record = ProgramRecord.at(self.words.ctypes.data)
        if columns:
            product = ProductRecord.at(self.record.address)
            product.columns, product.words, product.out_bytes = columns, 1, 2
        self.record.rows, self.record.grain = rows, grain

    def take(self, thread: int, threads: int) -> tuple[int, int] | None:
        """What _compute_shares() does for one share: (first, count); None: all are taken."""
        record = self.record
        unit, left, step = module._next_units(record, record.claim, thread)
        if left <= 0:
            return None
        count = module._share(record, unit, left, threads)
        assert 0 < count <= left and next_unit(record.address, thread) == unit
        record.claim += count * step
        return unit, count


CASES = [(rows, grain, 0) for rows in (0, 1, 2, 3, 7, 64, 1001) for grain in (1, 4, 100)]
CASES += [(rows, 0, columns) for rows in (1, 256, 257) for columns in (1, 48, 49, 500)]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("rows", "grain", "columns"), CASES)
def test_each_unit_is_taken_once(rows: int, grain: int, columns: int, threads: int):
    """Whichever thread comes next, in many orders; each begins in its own half."""
    for seed in range(5):
        memory, numbers = Memory(rows, grain, columns), random.Random(seed)
        make_ready(memory.record, 9)
        units, middle = memory.record.units, memory.record.middle
        assert units == rows if grain else units > 0
        left, taken, began = list(range(threads)), [0] * units, set()
        while left:
            thread = numbers.choice(left)
            share = memory.take(thread, threads)
            if share is None:
                left.remove(thread)
                continue
            first, count = share
            if thread not in began and thread % 2 == 0 and middle > 0 and not any(taken[:middle]):
                assert first == 0, "an even thread takes the first half first"
            began.add(thread)
            assert first + count <= (middle if first < middle else units), "a share is of one half"
            for unit in range(first, first + count):
                taken[unit] += 1
        assert taken == [1] * units
        assert all(next_unit(memory.record.address, thread) == units for thread in range(threads))
        assert run_of(memory.record) == 9


@pytest.mark.parametrize("run", [0, 1, (1 << 19) - 1])
def test_a_record_that_is_ready(run: int):
    """The claim says which run it is, and where both halves begin; nothing is done."""
    memory = Memory(10, 2)
    memory.record.done = 99
    make_ready(memory.record, run)
    assert (memory.record.units, memory.record.middle, memory.record.done) == (10, 5, 0)
    assert memory.record.claim == run << 2 * HALF | 5 and run_of(memory.record) == run


def test_shares_become_smaller():
    """Half of what is left, and no fewer than the grain."""
    memory = Memory(64, 4)
    make_ready(memory.record, 1)
    counts = []
    while (share := memory.take(0, 2)) is not None:
        counts.append(share[1])
    assert counts == [16, 8, 4, 4] * 2


def test_more_threads_take_less_at_once():
    memory = Memory(640, 1)
    make_ready(memory.record, 1)
    assert memory.take(0, 8) == (0, 40) and memory.take(1, 8) == (320, 40) and memory.take(2, 8) == (40, 35)


@pytest.mark.parametrize("thread", [0, 1])
def test_a_thread_without_work_in_its_half_helps_with_the_other(thread: int):
    memory = Memory(8, 4)
    make_ready(memory.record, 1)
    own, other = (0, 4), (4, 4)
    expected = [own, other] if thread == 0 else [other, own]
    assert [memory.take(thread, 2), memory.take(thread, 2), memory.take(thread, 2)] == [*expected, None]


def test_one_row_is_of_the_second_half():
    """So a single thread with any number finds it."""
    for thread in (0, 1, 2):
        memory = Memory(1, 1)
        make_ready(memory.record, 3)
        assert memory.take(thread, 3) == (0, 1) and memory.take(thread, 3) is None
