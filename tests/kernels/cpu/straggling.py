"""Operations for a program in which a thread seems to lose its core. Compiled when this is imported.

stalled() and releasing() stand in the place of an operation of a lowered program, whose address and shared
words are in the last words of its record (ORIGINAL, WORDS).

Words that they share: ENTERED: how often the unit was begun. FINISHED: how often by a thread that was not
the straggler. RELEASE: the straggler may go on. LEFT: it has gone on. GAVE_UP: it did without.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.isa import atomics
from kernels.cpu.isa.vectors import read_i64
from kernels.cpu.runtime.program import call_operation
from kernels.cpu.runtime.records import ProgramRecord

ENTERED, FINISHED, RELEASE, LEFT, GAVE_UP = range(5)
PATIENCE = 1 << 28
"""Looks at a word: many seconds, after which the test fails instead of waiting for ever."""

ORIGINAL = ProgramRecord.word("end")
WORDS = ORIGINAL + 1
"""Of a record in a program: which of its words of 64 bits."""


@record
class Shared(OperationRecord):
    """Of all operations."""

    words: Address
    own: i64 = 0


@operation
def stumble(record: Shared, first: int, count: int, thread: int) -> None:
    """The first thread waits until it is released."""
    words, turns = record.words, 0
    if atomics.add(words + 8 * ENTERED, 1) > 0:
        atomics.add(words + 8 * FINISHED, 1)
        return
    while atomics.read(words + 8 * RELEASE) == 0 and turns < PATIENCE:
        atomics.pause()
        turns += 1
    if turns == PATIENCE:
        atomics.write(words + 8 * GAVE_UP, 1)
    for _ in range(20_000):  # a thread that does not wait for it is now further
        atomics.pause()
    atomics.write(words + 8 * LEFT, 1)


@operation
def release(record: Shared, first: int, count: int, thread: int) -> None:
    """The straggler gets its core back."""
    atomics.write(record.words + 8 * RELEASE, 1)


@operation
def mark(record: Shared, first: int, count: int, thread: int) -> None:
    """Its own word: 1, or 2 if the straggler has left its unit."""
    words = record.words
    atomics.add(words + 8 * record.own, 1 + atomics.read(words + 8 * LEFT))


@operation
def stalled(record: ProgramRecord, first: int, count: int, thread: int) -> None:
    """The operation; of a record that two threads may compute, the first one waits before it until it is
    released, and is late. Any other record is waited for."""
    words, turns = read_i64(record.address + 8 * WORDS), 0
    if atomics.add(words + 8 * ENTERED, 1) == 0 and record.repeatable != 0:
        while atomics.read(words + 8 * RELEASE) == 0 and turns < PATIENCE:
            atomics.pause()
            turns += 1
        if turns == PATIENCE:
            atomics.write(words + 8 * GAVE_UP, 1)
        atomics.write(words + 8 * LEFT, 1)
    call_operation(read_i64(record.address + 8 * ORIGINAL), record.address, first, count, thread)


@operation
def releasing(record: ProgramRecord, first: int, count: int, thread: int) -> None:
    """The operation; whichever thread computes its last units releases the straggler behind it."""
    words = read_i64(record.address + 8 * WORDS)
    call_operation(read_i64(record.address + 8 * ORIGINAL), record.address, first, count, thread)
    if atomics.add(words + 8 * FINISHED, count) + count >= record.units:
        atomics.write(words + 8 * RELEASE, 1)
