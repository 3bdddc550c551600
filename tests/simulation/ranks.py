"""What the ranks of a group share, and how one waits for another, in virtual time.

The ranks are real (worker.cpu.rank_memory, worker.cpu.rank_runner, the epochs and numbers of
kernels.cpu.runtime.rank_link, and the exchange in Python); waiting is not, nor is how the end of a process is
seen.
"""

import ctypes
import mmap
from collections.abc import Callable
from random import Random

from kernels.cpu.runtime.plain_rank_exchange import PlainExchange
from kernels.cpu.runtime.rank_link import RankLink
from tests.simulation.machine import Processor
from worker.cpu.rank_memory import Ranks

_CAPACITY = 4096
_LOOK_S = 0.01


class GroupMemory:
    """Of one group, from the start of its ranks until the last of them has ended."""

    def __init__(self, size: int, lives: Callable[[int], bool]) -> None:
        """lives: whether a process does."""
        self.size, self.lives = size, lives
        self.memory = mmap.mmap(-1, RankLink.num_bytes(size, _CAPACITY))
        self.num_writes = 0  # of words

    def join(self, rank: int, pid: int, processor: Processor, random: Random, hop: float) -> "VirtualRanks":
        """Returns the other ranks, as one sees them, once all are here. processor: on which it runs. hop:
        seconds until it goes on once it may, at most. Raises RankGone."""
        exchange = VirtualExchange(self, processor, lambda: hop * random.random())
        link = RankLink(self.memory, rank, self.size, _CAPACITY, exchange)
        ranks = VirtualRanks(link, self, processor, exchange.wait, random)
        ranks.await_pids(pid)
        return ranks


class VirtualExchange(PlainExchange):
    """Its words are seen at once, after a moment that differs from rank to rank."""

    SPINS = 1

    def __init__(self, group: GroupMemory, processor: Processor, delay: Callable[[], float]) -> None:
        super().__init__()
        self._group, self._processor, self._delay = group, processor, delay

    def write_word(self, address: int, value: int) -> None:
        super().write_word(address, value)
        self._group.num_writes += 1

    def pause(self, looks: int) -> bool:
        """Waits once; then it is looked whether the others live."""
        if looks > self.SPINS:
            return False
        self.wait()
        return True

    def wait(self) -> None:
        """Until some rank has written a word, or for a hundredth of a second."""
        group, processor, seen = self._group, self._processor, self._group.num_writes
        processor.wait(processor.loop.time() + _LOOK_S, lambda: group.num_writes != seen)
        processor.wait(processor.loop.time() + self._delay())


class VirtualRanks(Ranks):
    """Sees the end of a process in the processes of the simulation."""

    def __init__(
        self,
        link: RankLink,
        group: GroupMemory,
        processor: Processor,
        wait: Callable[[], None],
        random: Random,
    ) -> None:
        super().__init__(link, lambda what, fraction: None)
        self._group, self._processor, self._wait, self._random = group, processor, wait, random

    def of_first(self, value: int) -> int:
        """See RankPeers. What is asked is whether a burst ends, which it does now and then by itself."""
        return super().of_first(value or self._random.random() < 0.1)

    def compute(self, step: int) -> None:
        """Exchanges something in the middle of a step, as layers do. Raises RankGone."""
        own, steps = ctypes.c_int64(step), (ctypes.c_int64 * self.size)()
        self.exchange(ctypes.addressof(own), ctypes.sizeof(own), ctypes.addressof(steps))
        assert {*steps} == {step}, f"ranks compute different steps: {[*steps]}"

    def abort(self) -> None:
        """See Ranks. A process that is killed says nothing."""
        if not self._processor.is_killed:
            super().abort()

    def watch(self, rank: int, pid: int) -> None:
        """See Ranks."""
        self._ends[pid] = rank
        self._check_ends()

    def _check_ends(self) -> None:
        for pid, rank in self._ends.items():
            if not self._group.lives(pid):
                raise self._gone(rank)

    def _pause(self) -> None:
        self._wait()

    def _doze(self) -> None:
        self._wait()
