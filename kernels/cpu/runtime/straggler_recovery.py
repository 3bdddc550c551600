"""Recovers from stragglers: threads that lose their core in the middle of a unit.

A service has more processes than a program has threads, and often no more cores. A process that delivers a
token takes a core for half a millisecond. The thread of that core leaves its unit unfinished, and every other
thread would wait for it: on two cores the program loses both. But a unit gives the same bits whenever it is
computed. So an idle thread computes the units of other threads again. The first thread to finish marks the
units done (compare and swap); the late one sees the mark and skips ahead.

    progress word    record + 1 << 40 | first unit << 20 | count    the thread computes these units
    of a thread      0                                              it computes nothing that counts
                     with DONE                                      another thread has computed them

A straggler writes the bits that are there already, as long as its inputs are unchanged. Later it may write
anything, so its output must be unused by then: a program says by how many operations a thread may be behind
(its slack; kernels.cpu.runtime.program waits for threads that are further behind), and which operations are
repeatable: those that do not write to their inputs, and whose output nothing reads after their inputs have
changed. What goes into a KV cache is read by later steps: storing is not repeatable.
"""

from kernels.cpu.isa import atomics

PATIENCE = 400
"""Reads of a word before a thread computes another thread's units, and before it tries again: about 10 us.
The last shares of an operation usually end within 3 us of one another. A thread may also lose its core after
it has taken units and before its progress word says so; then the others wait until it continues."""
SPINS = 2000
"""Reads of a word before a thread yields its core: about 50 us."""
_DONE = 1 << 62
_NUMBER, _UNITS = 0x3FFFFF, 1 << 20


def lost_patience(spins: int) -> bool:
    """Whether an idle thread should compute another thread's units. After a yield the thread may have slept
    for long, so it always tries."""
    return spins % PATIENCE == PATIENCE - 1 or spins >= SPINS


def progress_word(index: int, unit: int, count: int) -> int:
    """The progress word of a thread that computes these units of a record."""
    word = index + 1 << 40
    if unit + count < _UNITS:  # else they do not fit, and are not computed again
        word |= unit << 20 | count
    return word


def was_in_time(own: int, word: int, late: int) -> bool:
    """Whether a thread that has computed the units of its progress word was the first to finish them. own:
    address of that word. late: address of the number of stragglers."""
    if atomics.replace(own, word, 0):
        return True
    atomics.write(own, 0)
    atomics.add(late, -1)
    return False


def units_of_another(progress: int, thread: int, threads: int, index: int) -> int:
    """Address of the progress word of another thread that computes units of this record; 0: there is none.
    progress: address of the first thread's word, in a cache line for each."""
    for other in range(threads):
        word = atomics.read(progress + 64 * other)
        if other != thread and word >> 40 == index + 1 and word & (_UNITS - 1):
            return progress + 64 * other
    return 0


def first_and_count(word: int) -> tuple[int, int]:
    """The units of a progress word."""
    return word >> 20 & (_UNITS - 1), word & (_UNITS - 1)


def take_over(at: int, word: int) -> bool:
    """Marks units done, and returns whether this thread was the first to do so. at: address of the progress
    word that was read."""
    return atomics.replace(at, word, word | _DONE)


def is_behind(at: int, index: int) -> bool:
    """Whether a thread computes this record, or one before it. at: address of its progress word."""
    number = atomics.read(at) >> 40 & _NUMBER
    return 0 < number <= index + 1


def pause_or_yield(spins: int) -> int:
    """Waits in a spin loop. Returns the number of the next turn."""
    if spins < SPINS:
        atomics.pause()
    else:
        atomics.yield_core()
    return spins + 1
