"""A program: operations one after the other, each shared among threads. A whole forward pass is one call.

A ProgramHead is followed by its records (ProgramRecord), 256 bytes each.

A thread takes some units of the operation at hand, computes them, and takes more; when all are taken it
waits until they are done, then goes on to the next operation. Threads with even numbers take from the
first half, those with odd ones from the second, so that each goes through memory in one direction, and
knows what it will need next; whose half is taken helps with the other. So a thread that comes late, or
whose core is busy with another process, is not waited for: the others compute what it did not take, and
in the end what it did take (kernels.cpu.runtime.straggler_recovery). Which thread computes a unit changes no
result.

A thread that comes too late finds other runs' numbers in the claims, and leaves. That is why the
records of a program stay in memory for as long as the process lives.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa import atomics
from kernels.cpu.isa.vectors import I64
from kernels.cpu.runtime import straggler_recovery as stragglers
from kernels.cpu.runtime.records import ProductRecord, ProgramHead, ProgramRecord
from kernels.cpu.runtime.work_split import linear_middle, linear_share, linear_units

_CLAIM, _DONE = ProgramRecord.offset("claim"), ProgramRecord.offset("done")
_HALF = 22
"""Bits of a unit's number: 4 million units, more than 16 thousand rows times a vocabulary of a million."""
_NEXT = (1 << _HALF) - 1
_TAKEN = (1 << 2 * _HALF) - 1
_RUNS = (1 << 63 - 2 * _HALF) - 1

# The control block, a cache line for each word that is written while threads run.
MOST_THREADS = 1024
_RUN, _SLEEPERS, _STOP, _PROGRAM, HELPERS, _LATE, _PROGRESS = 0, 64, 128, 192, 256, 320, 384
CONTROL = _PROGRESS + 64 * MOST_THREADS
"""_LATE: how many threads are stragglers, or might become some. _PROGRESS: see
kernels.cpu.runtime.straggler_recovery."""


def _units(record: ProgramRecord) -> int:
    """A unit is a row, except in products."""
    return record.rows if record.grain else linear_units(ProductRecord.at(record.address))


def _middle(record: ProgramRecord, units: int) -> int:
    return units // 2 if record.grain else linear_middle(ProductRecord.at(record.address), units)


def _share(record: ProgramRecord, unit: int, left: int, threads: int) -> int:
    """Large shares first, small ones at the end, so that all threads end at about the same time. left: units
    of this half."""
    if record.grain == 0:
        return linear_share(ProductRecord.at(record.address), unit, left, threads)
    return min(left, max(record.grain, left // max(2, threads)))


@intrinsic(types.void(*[types.int64] * 5))
def call_operation(builder: Any, operation: Any, record: Any, first: Any, count: Any, thread: Any) -> None:
    """Calls an operation."""
    kind = ir.FunctionType(ir.VoidType(), [I64] * 4)
    builder.call(builder.inttoptr(operation, kind.as_pointer()), [record, first, count, thread])


def _take_part(control: int, program: int, run: int, thread: int, threads: int) -> None:
    """program: address of its head. Until all is done, or another run has begun."""
    head = ProgramHead.at(program)
    for index in range(head.count):
        record = ProgramRecord.at(program, index + 1)
        if head.slack > 0 and atomics.read(control + _LATE) > 0:
            _wait_for_stragglers(control, record, run, threads, index - head.slack)
        repeatable = head.slack > 0 and record.repeatable != 0
        if not _compute_shares(control, record, run, index, thread, threads, repeatable):
            return
        units, spins = record.units, 0
        while atomics.read(record.address + _DONE) < units:
            if atomics.read(record.address + _CLAIM) >> 2 * _HALF != run:
                return
            if repeatable and stragglers.lost_patience(spins):
                _compute_too(control, record, run, index, thread, threads)
            spins = stragglers.pause_or_yield(spins)


def _goes_on(record: ProgramRecord, run: int) -> bool:
    """Whether the run has not ended. Progress words that are read after that may
    be those of the next run."""
    claim = atomics.read(record.address + _CLAIM)
    return claim >> 2 * _HALF == run and claim & _TAKEN != _TAKEN


def _wait_for_stragglers(control: int, record: ProgramRecord, run: int, threads: int, behind: int) -> None:
    """Waits until no thread computes a record up to number `behind`. record: the one at hand."""
    for other in range(threads):
        spins = 0
        while _goes_on(record, run) and stragglers.is_behind(control + _PROGRESS + 64 * other, behind):
            spins = stragglers.pause_or_yield(spins)


def _compute_shares(
    control: int, record: ProgramRecord, run: int, index: int, thread: int, threads: int, repeatable: bool
) -> bool:
    """Until all units are taken. False: another run has begun."""
    own = control + _PROGRESS + 64 * thread
    while True:
        claim = atomics.read(record.address + _CLAIM)
        if claim >> 2 * _HALF != run:
            return False
        unit, left, step = _next_units(record, claim, thread)
        if left <= 0:
            return True
        count = _share(record, unit, left, threads)
        if atomics.replace(record.address + _CLAIM, claim, claim + count * step):
            word = stragglers.progress_word(index, unit, count)
            if repeatable:
                atomics.write(own, word)
            call_operation(record.operation, record.address, unit, count, thread)
            if not repeatable or stragglers.was_in_time(own, word, control + _LATE):
                atomics.add(record.address + _DONE, count)


def _next_units(record: ProgramRecord, claim: int, thread: int) -> tuple[int, int, int]:
    """The next unit for a thread, how many are left from there on, and what a unit adds to the claim."""
    first, second = claim >> _HALF & _NEXT, claim & _NEXT
    left, left_behind = record.middle - first, record.units - second
    if left > 0 and (thread % 2 == 0 or left_behind <= 0):
        return first, left, 1 << _HALF
    return second, left_behind, 1


def next_unit(address: int, thread: int) -> int:
    """Which this thread would take next, of the record at an address; as many as there are, or more: all are
    taken."""
    record = ProgramRecord.at(address)
    unit, left, _ = _next_units(record, atomics.read(address + _CLAIM), thread)
    return unit if left > 0 else record.units


def _compute_too(
    control: int, record: ProgramRecord, run: int, index: int, thread: int, threads: int
) -> None:
    """Computes units of other threads too. A thread that does this may be late itself, and is counted before
    it checks that the run still goes on: _end() reads the count after it has ended the run."""
    own, late = control + _PROGRESS + 64 * thread, control + _LATE
    atomics.add(late, 1)
    atomics.write(own, stragglers.progress_word(index, 0, 0))
    while _goes_on(record, run):
        at = stragglers.units_of_another(control + _PROGRESS, thread, threads, index)
        if at == 0:
            break
        word = atomics.read(at)
        first, count = stragglers.first_and_count(word)
        if word >> 40 == index + 1:
            call_operation(record.operation, record.address, first, count, thread)
            atomics.add(late, 1)
            if stragglers.take_over(at, word):
                atomics.add(record.address + _DONE, count)
            else:
                atomics.add(late, -1)
    atomics.write(own, 0)
    atomics.add(late, -1)


def make_ready(record: ProgramRecord, run: int) -> None:
    """Opens a record's units to the threads of a run. None of them is at the record yet."""
    record.units = _units(record)
    record.middle = _middle(record, record.units)
    atomics.write(record.address + _DONE, 0)
    atomics.write(record.address + _CLAIM, run << 2 * _HALF | record.middle)


def run_of(record: ProgramRecord) -> int:
    """The number of the run that a record is part of, while it is computed."""
    run: int = atomics.read(record.address + _CLAIM) >> 2 * _HALF
    return run


def _begin(control: int, program: int) -> int:
    """Makes the records ready and calls the helpers. Returns the number of the run."""
    run = (atomics.read(control + _RUN) + 1) & _RUNS
    for index in range(ProgramHead.at(program).count):
        make_ready(ProgramRecord.at(program, index + 1), run)
    atomics.write(control + _PROGRAM, program)
    atomics.add(control + _RUN, run - atomics.read(control + _RUN))
    if atomics.read(control + _SLEEPERS):
        atomics.wake_all(control + _RUN)
    return run


def _end(control: int, program: int, run: int) -> None:
    """Leaves no units to take, and no thread that computes any: records and their buffers may change now."""
    for index in range(ProgramHead.at(program).count):
        at = ProgramRecord.at(program, index + 1).address
        atomics.write(at + _CLAIM, run << 2 * _HALF | _TAKEN)
    spins = 0
    while atomics.add(control + _LATE, 0) > 0:
        spins = stragglers.pause_or_yield(spins)


def _help(control: int, thread: int) -> None:
    """Takes part in every run, until the process is to end."""
    seen = spins = 0
    while atomics.read(control + _STOP) == 0:
        run = atomics.read(control + _RUN)
        if run != seen:
            seen, spins = run, 0
            helpers = atomics.read(control + HELPERS)
            if thread <= helpers:
                _take_part(control, atomics.read(control + _PROGRAM), run, thread, helpers + 1)
        elif spins < stragglers.SPINS:
            spins += 1
            atomics.pause()
        else:
            atomics.add(control + _SLEEPERS, 1)
            atomics.sleep_while(control + _RUN, seen)
            atomics.add(control + _SLEEPERS, -1)
            spins = 0


def run_program(control: int, program: int) -> None:
    """Runs a program as thread 0. Addresses of the control block and of the program's head."""
    run, threads = _begin(control, program), atomics.read(control + HELPERS) + 1
    _take_part(control, program, run, 0, threads)
    _end(control, program, run)


@compiled
def enter(control: int, program: int, thread: int) -> None:
    """Thread 0 runs the program; others help with every run from now on. Addresses."""
    if thread > 0:
        _help(control, thread)
    else:
        run_program(control, program)
