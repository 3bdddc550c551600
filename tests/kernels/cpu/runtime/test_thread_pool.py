"""Programs and the team that runs them: what records become, and memory of threads."""

import ctypes

import numpy as np
import pytest

from kernels.cpu.compiler.records import OperationRecord, i64, record

pytestmark = pytest.mark.cpu_kernels


@record
class Small(OperationRecord):
    """Two numbers."""

    x: i64
    y: i64 = 0


class TooLarge(Small):
    """Fields beyond those of a program's record."""

    _fields_ = [(f"field{number}", ctypes.c_int64) for number in range(11)]


def test_a_record_is_copied_to_its_index():
    """With its operation and its rows; neighbours and what the program adds stay."""
    from kernels.cpu.attention.latent.operations import copy_heads
    from kernels.cpu.runtime.records import ProgramRecord
    from kernels.cpu.runtime.thread_pool import Program

    work, own = Program(3, slack=2), Small(x=5, y=-6)
    assert work.records.shape == (3, ProgramRecord.size() // 8) and work.address % 64 == 0
    work.put(1, copy_heads, 9, own, 4, repeatable=True)
    second = ProgramRecord.at(work.address, 2)
    assert (second.operation, second.rows, second.grain, second.repeatable) == (int(copy_heads), 9, 4, 1)
    assert work.records[1, 2:4].tolist() == [5, -6]
    assert not work.records[0].any() and not work.records[2].any()
    own.x = 77
    assert work.records[1, 2] == 5, "a copy"
    work.put(1, copy_heads, 3, Small(x=8), 0)
    assert (second.rows, second.grain, second.repeatable, work.records[1, 2:4].tolist()) == (3, 0, 0, [8, 0])


def test_slack_is_that_of_the_head():
    from kernels.cpu.runtime.records import ProgramHead
    from kernels.cpu.runtime.thread_pool import Program

    work = Program(2, slack=5)
    head = ProgramHead.at(work.address)
    assert (head.count, head.slack, work.slack) == (2, 5, 5)
    work.slack = 0
    assert head.slack == 0


def test_records_that_do_not_fit_are_refused():
    from kernels.cpu.attention.latent.operations import copy_heads
    from kernels.cpu.runtime.thread_pool import Program

    with pytest.raises(AssertionError):
        Program(1).put(0, copy_heads, 1, TooLarge(), 1)


def test_memory_of_a_program_stays():
    """A late thread may still read it."""
    from kernels.cpu.runtime.thread_pool import Program

    work = Program(1)
    address, kept = work.address, len(Program._all)
    del work
    assert len(Program._all) == kept
    assert any(memory.ctypes.data == address for memory in Program._all)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_each_thread_has_scratch_memory_of_its_own(count: int):
    """As much as was asked for most, also for threads that come later; where it is, is found at one place."""
    from kernels.cpu.runtime.thread_pool import Team

    team = Team()
    team._started = 10  # no threads are needed
    at = team.scratch(100)
    team.set_threads(count)
    assert team.scratch(4096) == at == team.scratch(50)
    addresses = np.frombuffer((ctypes.c_int64 * count).from_address(at), np.int64).tolist()
    assert len(set(addresses)) == count and all(address % 64 == 0 for address in addresses)
    assert all(abs(one - other) >= 4096 for one in addresses for other in addresses if one != other)
    for number, address in enumerate(addresses):
        ctypes.memset(address, number, 4096)
    assert [ctypes.string_at(address + 4095, 1)[0] for address in addresses] == list(range(count))


def test_a_team_begins_with_the_caller_alone():
    from kernels.cpu.runtime.thread_pool import Team

    team = Team()
    assert team.threads == 1 and team.recovers_stragglers
    team._started = 10
    team.set_threads(4)
    assert team.threads == 4
    team.set_threads(1)
    assert team.threads == 1
