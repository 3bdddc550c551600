"""One rank's end of the memory through which the ranks of a host, or some of them, exchange bytes
(kernels.cpu.runtime.rank_exchange)."""

import ctypes
import mmap
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Self

from kernels.cpu.runtime.plain_rank_exchange import PlainExchange
from kernels.cpu.runtime.records import RankExchange

CAPACITY = 1 << 20
"""Bytes of a buffer: what is larger is exchanged piece by piece."""
_SLEEP_NS = 10_000_000
_POLLIN = 1 << 32
"""The events of a struct pollfd, as it is seen as one word."""
_EPOCH = 40
"""Exchanges of an epoch are numbered from its number << _EPOCH on."""
_PID, _EPOCHS_ENDED, _PLANS = 16, 24, 32
"""Offsets in the line of a rank."""


class RankLink:
    """Exchanges bytes with the other ranks. For one thread, or a program that it runs."""

    DEADLINE_S = 600.0
    """Seconds that an exchange of a program takes at most, where all others live."""

    def __init__(
        self,
        memory: mmap.mmap,
        rank: int,
        size: int,
        capacity: int = CAPACITY,
        exchange: PlainExchange | None = None,
        first: int = 0,
    ) -> None:
        """memory: of num_bytes(), zeros where no rank has used it yet. It is kept. exchange: None: by
        compiled code. first: where in the memory it begins."""
        self._kernels: ModuleType | PlainExchange = exchange or _compiled()
        self._memory = memory
        self.rank, self.size, self.capacity = rank, size, capacity
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + first
        self._peers = (ctypes.c_int64 * size)()
        self._lines = address + self._kernels.LINE
        self.members: Sequence[int] = range(size)
        """The numbers of these ranks among those of the worker."""
        self._record = RankExchange(
            memory=address,
            abort=address + self._kernels.ABORT,
            buffers=address + mmap.PAGESIZE,
            capacity=capacity,
            rank=rank,
            num_ranks=size,
            sequence=0,
            source=0,
            count=0,
            target=0,
            stride=0,
            seconds=0,
            nanoseconds=_SLEEP_NS,
            spins=0,
            may_sleep=1,
            is_posted=0,
            missing=0,
            peers=ctypes.addressof(self._peers),
            num_peers=0,
            most_sleeps=int(self.DEADLINE_S * 1e9 / _SLEEP_NS),
            failed=0,
        )
        self._epoch = self._num_plans = self._num_begun = 0
        self._parts: list[RankLink] = []
        self.on_failure: Callable[[int], None] = _fail
        """Raises an error that says why an exchange of a program has failed. It is called with a rank that
        was waited for."""

    @classmethod
    def plain(cls, memory: mmap.mmap, rank: int, size: int) -> Self:
        """Returns one that needs no compiled code."""
        return cls(memory, rank, size, exchange=PlainExchange())

    def part(self, members: Sequence[int], first: int) -> "RankLink":
        """Returns the link of some of the ranks, among them this one, which notices what this link does: call
        it when all processes are watched. first: where in the memory it begins."""
        exchange = self._kernels if isinstance(self._kernels, PlainExchange) else None
        rank = members.index(self.rank)
        part = type(self)(self._memory, rank, len(members), self.capacity, exchange, first)
        part.members, part.on_failure, part._peers = members, self.on_failure, self._peers
        for name in ("abort", "peers", "num_peers"):
            setattr(part._record, name, getattr(self._record, name))
        self._parts.append(part)
        return part

    @staticmethod
    def num_bytes(size: int, capacity: int = CAPACITY) -> int:
        """Returns how much memory so many ranks share."""
        return mmap.PAGESIZE + 2 * size * capacity

    @property
    def address(self) -> int:
        """Of the RankExchange by which programs exchange."""
        return self._record.address

    def watch(self, descriptor: int) -> None:
        """Has programs notice the end of a peer. descriptor: of its process (pidfd)."""
        self._peers[self._record.num_peers] = descriptor | _POLLIN
        self._record.num_peers += 1

    def check(self) -> None:
        """Calls on_failure() if an exchange of a program has failed."""
        if self._record.failed:
            self.on_failure(self.members[self._record.missing])

    def exchange(self, source: int, count: int, target: int, on_missing: Callable[[int], None]) -> None:
        """Copies [count] bytes of each rank to a target [ranks, count]. Addresses. All ranks call it with the
        same count, which may be 0: then each waits until all have called.

        on_missing: called, while a rank is waited for, a hundred times a second with its number; what it
        raises ends the wait.
        """
        record, first = self._record, 0
        record.stride = count
        while True:
            record.source, record.target = source + first, target + first
            record.count = min(self.capacity, count - first)
            self._exchange(on_missing)
            first += record.count
            if first >= count:
                return

    def _exchange(self, on_missing: Callable[[int], None]) -> None:
        record = self._record
        record.sequence += 1
        record.is_posted, record.spins, record.may_sleep = 0, 0, 1
        self._kernels.exchange_parts(record)
        while record.missing >= 0:
            on_missing(self.members[record.missing])
            record.spins = self._kernels.SPINS
            self._kernels.exchange_parts(record)

    def send(self, source: int, count: int, on_missing: Callable[[int], None]) -> None:
        """Sends [count] bytes from rank 0 of two to the other one, which receives as many. on_missing: see
        exchange()."""
        self._pass_on(self._kernels.send_part, source, 0, count, on_missing)

    def receive(self, target: int, count: int, on_missing: Callable[[int], None]) -> None:
        """Takes [count] bytes that rank 0 of two sends. on_missing: see exchange()."""
        self._pass_on(self._kernels.receive_part, 0, target, count, on_missing)

    def _pass_on(
        self,
        move: Callable[[RankExchange], None],
        source: int,
        target: int,
        count: int,
        on_missing: Callable[[int], None],
    ) -> None:
        record = self._record
        for first in range(0, count, self.capacity):
            record.sequence += 1
            record.source, record.target = source + first, target + first
            record.count = min(self.capacity, count - first)
            record.spins, record.may_sleep = 0, 1
            move(record)
            while record.missing >= 0:
                on_missing(self.members[record.missing])
                record.spins = self._kernels.SPINS
                move(record)

    @property
    def has_arrived(self) -> bool:
        """Whether rank 0 of two has sent what this rank receives next."""
        return self._read(0, self._kernels.POSTED) > self._record.sequence

    def announce_plan(self) -> None:
        """Says that this rank has one more plan."""
        self._num_plans += 1
        self._write(_PLANS, (self._epoch << _EPOCH) + self._num_plans)

    def begin_plan(self) -> None:
        """The next plan is that behind the last one."""
        self._num_begun += 1

    @property
    def rank_without_plan(self) -> int:
        """A rank that has not said that it has the plan of begin_plan(); -1: all have."""
        number = (self._epoch << _EPOCH) + self._num_begun
        return next((rank for rank in range(self.size) if self._read(rank, _PLANS) < number), -1)

    def pid_of(self, rank: int) -> int:
        """Returns the process of a rank; 0: it has not said it yet."""
        return self._read(rank, _PID)

    def tell_pid(self, pid: int) -> None:
        """Says which process this rank is."""
        self._write(_PID, pid)

    def abort(self) -> None:
        """Says that this rank ends, and with it the group."""
        self._kernels.write_word(self._record.abort, 1 + self.members[self.rank])

    @property
    def aborting_rank(self) -> int:
        """The rank that has said so; -1: none."""
        return int(self._kernels.read_word(self._record.abort)) - 1

    def end_epoch(self) -> None:
        """Says that this rank begins no exchange until all ranks have ended the epoch. Exchanges that some
        have begun and others never will are forgotten then; see begin_epoch()."""
        self._write(_EPOCHS_ENDED, self._epoch + 1)

    def has_left(self, rank: int) -> bool:
        """Returns whether a rank has ended the epoch without the exchange at hand."""
        return self.has_ended_epoch(rank) and self._read(rank, self._kernels.POSTED) < self._record.sequence

    def has_ended_epoch(self, rank: int) -> bool:
        """Returns whether a rank gets no plan any more before the next epoch."""
        return self._read(rank, _EPOCHS_ENDED) > self._epoch

    def begin_epoch(self) -> int:
        """Begins the next epoch, if all ranks have ended this one: then it returns -1, else one that has
        not."""
        for rank in range(self.size):
            if self._read(rank, _EPOCHS_ENDED) <= self._epoch:
                return rank
        self._epoch, self._num_plans, self._num_begun = self._epoch + 1, 0, 0
        for link in (self, *self._parts):
            link._record.sequence = self._epoch << _EPOCH
            link._write(self._kernels.POSTED, link._record.sequence)
        return -1

    def _read(self, rank: int, offset: int) -> int:
        return int(self._kernels.read_word(self._lines + self._kernels.LINE * rank + offset))

    def _write(self, offset: int, value: int) -> None:
        self._kernels.write_word(self._lines + self._kernels.LINE * self.rank + offset, value)


def _compiled() -> ModuleType:
    from kernels.cpu.runtime import rank_exchange  # compiles, the first time

    return rank_exchange


def _fail(missing: int) -> None:
    raise ConnectionError(f"rank {missing} has ended, or has not come")
