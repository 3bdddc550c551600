"""How the ranks of a host find one another, and wait for one another without an end.

Rank 0 makes a file that has no name in any folder (memfd), and the others map it by its link below /proc. So
it is gone when the last of them is, however they end, and only processes of the same user can open it.

A rank that waits looks, a hundred times a second, whether all others live and none has given up. Needs no
torch.
"""

import contextlib
import hashlib
import math
import mmap
import os
import select
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from kernels.cpu.runtime.rank_link import RankLink
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.channel import EngineGone
from worker.cpu.rank_peers import ABSENT, CANNOT_JOIN, DEADLINE_S, JOIN_S, Exchange, RankPeers
from worker.group_shape import group_shape, parts_of
from worker.loop import RankGone

_LOOK_S = 0.01
_DOZE_S = 0.0002
_REPORT_S = 1.0
_HEADER = 1 << 16
"""Bytes of a file of weights that its digest covers: names, shapes and places of its tensors."""


class RanksOfPart(Exchange):
    """Some of the ranks."""

    link: RankLink

    def __init__(self, ranks: "Ranks", link: RankLink) -> None:
        self._ranks, self.link = ranks, link

    def exchange(self, source: int, count: int, target: int) -> None:
        self._ranks.exchange_by(self.link, source, count, target)

    def send(self, source: int, count: int) -> None:
        """Sends [count] bytes from the first of two ranks, which need not wait for the other one. Raises
        RankGone."""
        self._ranks.wait_for(lambda look: self.link.send(source, count, look))

    def receive(self, target: int, count: int) -> None:
        """Takes [count] bytes that the first of two ranks sends. Raises RankGone."""
        self._ranks.wait_for(lambda look: self.link.receive(target, count, look))

    def has_arrived(self) -> bool:
        """Returns whether receive() would not wait. Raises RankGone."""
        if not self.link.has_arrived:
            self._ranks.check()
        return self.link.has_arrived


class Ranks(RankPeers):
    """The other ranks, as this one sees them. For one thread."""

    link: RankLink

    def __init__(self, link: RankLink, on_wait: Callable[[str, float], None]) -> None:
        """on_wait: see RankPeers."""
        self.link = link
        link.on_failure = self._fail
        self._ends: dict[int, int] = {}  # a descriptor of each peer's process, and its rank
        self._watched = select.poll()
        self.on_wait = on_wait
        self.rank, self.size = link.rank, link.size
        self.parts: dict[tuple[int, ...], RanksOfPart] = {}

    def make_parts(self, parts: Iterable[tuple[int, ...]]) -> None:
        """Makes the exchanges of some of the ranks, whose memory follows that of all, when all processes are
        watched. parts: see parts_of(); all ranks name the same."""
        first = RankLink.num_bytes(self.size)
        for part in parts:
            if self.rank in part:
                self.parts[part] = RanksOfPart(self, self.link.part(part, first))
            first += RankLink.num_bytes(len(part))

    def watch(self, rank: int, pid: int) -> None:
        """Notices the end of a peer's process. Raises RankGone."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            raise self._gone(rank) from None
        self._ends[descriptor] = rank
        self.link.watch(descriptor)
        self._watched.register(descriptor, select.POLLIN)

    def exchange(self, source: int, count: int, target: int) -> None:
        """Copies [count] bytes of each rank to a target [ranks, count]; see RankLink. Raises RankGone."""
        self.exchange_by(self.link, source, count, target)

    def exchange_by(self, link: RankLink, source: int, count: int, target: int) -> None:
        """exchange(), with the ranks of a link. Raises RankGone."""
        self._since = 0.0
        link.exchange(source, count, target, self._look_for)

    def wait_for(self, move: Callable[[Callable[[int], None]], None]) -> None:
        """Moves bytes; the function gets what it is to call while a rank is missing. Raises RankGone."""
        self._since = 0.0
        move(self._look_for)

    def announce_plan(self) -> None:
        self.link.announce_plan()

    def begin_step(self, *, micro_batch: bool = False) -> None:
        """Returns when all ranks have the plan of the next step. Raises EngineGone when one has lost the
        core without it: then no rank begins the step. Raises RankGone.

        micro_batch: other ranks may be computing the step before; else all begin together.
        """
        self._since = 0.0
        self.link.begin_plan()
        if not micro_batch:
            self.link.exchange(0, 0, 0, self._look_for_the_core)
            return
        while (missing := self.link.rank_without_plan) >= 0:
            if self.link.has_ended_epoch(missing) and self.link.rank_without_plan == missing:
                raise EngineGone
            self._look_for(missing)
            self._doze()

    def leave_core(self) -> None:
        """Returns when all ranks know that the core is gone, and none begins a step of it. Raises
        RankGone."""
        self._since = 0.0
        self.link.end_epoch()
        while (missing := self.link.begin_epoch()) >= 0:
            self._look_for(missing)
            self._pause()

    def abort(self) -> None:
        """Ends the group: this rank cannot continue."""
        self.link.abort()

    def await_pids(self, own: int) -> None:
        """Waits until all ranks are here, and watches them. own: of this one. Raises StartupError,
        RankGone."""
        self.link.tell_pid(own)
        self._since = 0.0
        for rank in range(self.size):
            while not (pid := self.link.pid_of(rank)):
                self._look_for(rank)
                if time.monotonic() - self._since > JOIN_S:
                    raise StartupError(CANNOT_JOIN, f"rank {rank} has not come within {JOIN_S:.0f} s", ABSENT)
                self._pause()
            if rank != self.rank and rank not in self._ends.values():
                self.watch(rank, pid)

    def _look_for(self, missing: int) -> None:
        """_look(), for a rank."""
        self._look(f"rank {missing}")

    def _check_peers(self) -> None:
        self._check_ends()
        failed = self.link.aborting_rank
        if failed >= 0 and failed != self.rank:
            raise RankGone(f"rank {failed} of the worker has failed, and rank {self.rank} ends with it")

    def _check_ends(self) -> None:
        for descriptor, _ in self._watched.poll(0):
            raise self._gone(self._ends[descriptor])

    def _pause(self) -> None:
        time.sleep(_LOOK_S)

    def _doze(self) -> None:
        time.sleep(_DOZE_S)

    def _look_for_the_core(self, missing: int) -> None:
        if self.link.has_left(missing):
            raise EngineGone
        self._look_for(missing)

    def _fail(self, missing: int) -> None:
        """Raises RankGone: an exchange of a program has failed."""
        self._since = 0.0
        self._look_for(missing)
        raise self._late(f"rank {missing}", DEADLINE_S)

    def _gone(self, rank: int) -> RankGone:
        return RankGone(f"rank {rank} of the worker is gone, and rank {self.rank} ends with it")


def join(
    initialize: worker_pb2.Initialize,
    rank: int,
    on_wait: Callable[[str, float], None],
    make_link: Callable[[mmap.mmap, int, int], RankLink] = RankLink,
) -> Ranks:
    """Returns the ranks of the group once all are here. on_wait: see RankPeers. Raises StartupError."""
    shape, name = group_shape(initialize), f"pagewire-ranks-{initialize.group_name}"
    size, parts = math.prod(shape), parts_of(*shape)
    num_bytes = sum(map(RankLink.num_bytes, (size, *map(len, parts))))
    with contextlib.ExitStack() as stack:
        first = initialize.first_rank_pid
        descriptor = _find(name, num_bytes, first, on_wait) if rank else _make(name, num_bytes)
        stack.callback(os.close, descriptor)
        ranks = Ranks(make_link(mmap.mmap(descriptor, num_bytes), rank, size), on_wait)
        if rank:
            ranks.watch(0, first)
        ranks.await_pids(os.getpid())
        ranks.make_parts(parts)
    return ranks


def _make(name: str, num_bytes: int) -> int:
    """Returns the descriptor of new memory. Raises StartupError."""
    descriptor = os.memfd_create(name)
    try:
        os.fchmod(descriptor, 0o600)
        os.posix_fallocate(descriptor, 0, num_bytes)
    except OSError as error:
        os.close(descriptor)
        why = f"there are no {num_bytes >> 20} MiB of memory that they could share: {error.strerror}"
        raise StartupError(CANNOT_JOIN, f"rank 0: {why}", "free some memory, then start again") from error
    return descriptor


def _find(name: str, num_bytes: int, pid: int, on_wait: Callable[[str, float], None]) -> int:
    """Returns a descriptor of the memory that rank 0 makes, once it has its size. Raises StartupError."""
    began = reported = time.monotonic()
    while (now := time.monotonic()) - began < JOIN_S:
        try:
            with os.scandir(f"/proc/{pid}/fd") as files:
                for file in files:
                    with contextlib.suppress(FileNotFoundError):
                        is_it = os.readlink(file).startswith(f"/memfd:{name} ")
                        if is_it and file.stat().st_size >= num_bytes:
                            return os.open(file, os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            why = f"the memory of rank 0 (pid {pid}) cannot be opened: {error.strerror}"
            raise StartupError(CANNOT_JOIN, why, "run all ranks on one host, as one user") from error
        if now - reported >= _REPORT_S:
            reported = now
            on_wait("rank 0", (now - began) / JOIN_S)
        time.sleep(_LOOK_S)
    raise StartupError(CANNOT_JOIN, f"rank 0 (pid {pid}) has made no memory within {JOIN_S:.0f} s", ABSENT)


def model_digest(path: Path) -> str:
    """Returns a digest of what a checkpoint says of itself: its JSON files, and the size and the header of
    each file of weights."""
    digest = hashlib.sha256()
    files = [path] if path.is_file() else sorted((*path.glob("*.json"), *path.glob("*.safetensors")))
    for file in files:
        with file.open("rb") as opened:
            head = opened.read() if file.suffix == ".json" else opened.read(_HEADER)
        digest.update(f"{file.name} {file.stat().st_size} ".encode() + hashlib.sha256(head).digest())
    return digest.hexdigest()[:16]
