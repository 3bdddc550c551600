"""Threads that lose their core in the middle of a unit: another one computes the unit too.

A service has more processes than threads of a program, and often no more cores. One that delivers a token
takes a core for half a millisecond, in which the thread of that core leaves its unit as it is, and every
other thread would wait for it: on two cores the program loses both. But a unit that is computed twice
gives the same bits twice. So a thread that has nothing left to do computes what others are at, and
whoever is done first says so; the late one finds out, and hurries on to where the others are.

    post of a thread    record + 1 << 40 | first unit << 20 | count    it computes these units
                        0                                              it computes nothing that counts
                        with OVER                                      another thread has computed them

What a straggler still writes are the bits that stand there already, for as long as what it reads is what
it was. Later it may be anything. So nothing that matters may lie there by then: a program says how many
operations somebody may be behind (its slack; kernels.cpu.runtime.program waits for those who are further),
and which operations may be computed twice: those that do not write to what they read.
"""

from kernels.cpu.isa import atomics

PATIENCE = 400
"""Looks at a word before a thread computes what another one is at, and before it looks again: about 10 us. In
the ordinary course the last shares of an operation end within 3 us of one another. A thread may also lose
its core after it has taken units and before its post says so; then nobody helps until it goes on."""
SPINS = 2000
"""Looks at a word before a thread lets others have its core: about 50 us."""
_OVER = 1 << 62
_NUMBER, _UNITS = 0x3FFFFF, 1 << 20


def lost_patience(spins: int) -> bool:
    """Whether to look what others are at. Who gives way may come back much later, and looks every time."""
    return spins % PATIENCE == PATIENCE - 1 or spins >= SPINS


def post(index: int, unit: int, count: int) -> int:
    """The word of a thread at these units of a record."""
    word = index + 1 << 40
    if unit + count < _UNITS:  # else they have no room, and nobody will compute them too
        word |= unit << 20 | count
    return word


def was_in_time(own: int, word: int, late: int) -> bool:
    """Of a thread that has computed what its post says. own: its address. late: that of the number of
    stragglers."""
    if atomics.replace(own, word, 0):
        return True
    atomics.write(own, 0)
    atomics.add(late, -1)
    return False


def units_of_another(posts: int, thread: int, threads: int, index: int) -> int:
    """Address of the post of a thread that computes units of this record; 0: there is none. posts: address
    of the first, a cache line for each."""
    for other in range(threads):
        word = atomics.read(posts + 64 * other)
        if other != thread and word >> 40 == index + 1 and word & (_UNITS - 1):
            return posts + 64 * other
    return 0


def first_and_count(word: int) -> tuple[int, int]:
    """Of a post."""
    return word >> 20 & (_UNITS - 1), word & (_UNITS - 1)


def take_over(at: int, word: int) -> bool:
    """Those units are done. Whether nobody was faster. at: address of the post that was this word."""
    return atomics.replace(at, word, word | _OVER)


def is_behind(at: int, index: int) -> bool:
    """Whether a thread is at a record up to this one. at: address of its post."""
    number = atomics.read(at) >> 40 & _NUMBER
    return 0 < number <= index + 1


def pause_or_give_way(spins: int) -> int:
    """One turn of a loop that waits. Returns the number of the next."""
    if spins < SPINS:
        atomics.pause()
    else:
        atomics.give_way()
    return spins + 1
