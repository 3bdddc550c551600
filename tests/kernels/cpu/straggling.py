"""Operations for a program in which a thread seems to lose its core. Compiled when this is imported.

Words that they share: ENTERED: how often the unit was begun. FINISHED: how often by a thread that was not
the straggler. RELEASE: the straggler may go on. LEFT: it has gone on. GAVE_UP: it did without.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.isa import atomics

ENTERED, FINISHED, RELEASE, LEFT, GAVE_UP = range(5)
PATIENCE = 1 << 28
"""Looks at a word: many seconds, after which the test fails instead of waiting for ever."""


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
    for _ in range(20_000):  # who does not wait for it is now further
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
