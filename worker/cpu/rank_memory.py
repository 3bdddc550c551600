"""How the tensor-parallel ranks of a host find one another, and wait for one another without an end.

Rank 0 makes a file that has no name in any folder (memfd), and the others map it by its link below /proc. So
it is gone when the last of them is, however they end, and only processes of the same user can open it.

A rank that waits looks, a hundred times a second, whether all others live and none has given up. Needs no
torch.
"""

import contextlib
import ctypes
import hashlib
import json
import mmap
import os
import select
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kernels.api import RankLink
from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.channel import EngineGone
from worker.loop import RankGone

JOIN_S = 120.0
"""Seconds that a rank waits for others to begin to load."""
DEADLINE_S = RankLink.DEADLINE_S
"""Seconds that a rank waits in one exchange, beyond the limit of the engine core's hang detection: a peer may
be loading a large model."""
_LOOK_S = 0.01
_REPORT_S = 1.0
_MOST_FACTS = 4096
_HEADER = 1 << 16
"""Bytes of a file of weights that its digest covers: names, shapes and places of its tensors."""
_WHAT = "cannot join the group of ranks"
_REMEDY = "the log says why a rank has not come; then start again"


class Ranks:
    """The other ranks, as this one sees them. For one thread."""

    def __init__(self, link: RankLink, on_wait: Callable[[str, float], None]) -> None:
        """on_wait: see `on_wait`."""
        self.link = link
        link.on_failure = self._fail
        self._ends: dict[int, int] = {}  # a descriptor of each peer's process, and its rank
        self._watched = select.poll()
        self._since = self._reported = 0.0
        self.on_wait: Callable[[str, float], None] | None = on_wait
        """Called once a second, with text and a fraction that changes, while a rank is waited for; None:
        nothing needs to know."""

    @property
    def rank(self) -> int:
        return self.link.rank

    @property
    def size(self) -> int:
        return self.link.size

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
        self._since = 0.0
        self.link.exchange(source, count, target, self._look)

    def of_first(self, value: int) -> int:
        """Returns the value of rank 0, on every rank. Raises RankGone."""
        own, found = (ctypes.c_int64 * 1)(value), (ctypes.c_int64 * self.size)()
        self.exchange(ctypes.addressof(own), ctypes.sizeof(own), ctypes.addressof(found))
        return found[0]

    def begin_step(self) -> None:
        """Returns when all ranks have the plan of the next step. Raises EngineGone when one has lost the
        core without it: then no rank begins the step. Raises RankGone."""
        self._since = 0.0
        self.link.exchange(0, 0, 0, self._look_for_the_core)

    def leave_core(self) -> None:
        """Returns when all ranks know that the core is gone, and none begins a step of it. Raises
        RankGone."""
        self._since = 0.0
        self.link.end_epoch()
        while (missing := self.link.begin_epoch()) >= 0:
            self._look(missing)
            time.sleep(_LOOK_S)

    def abort(self) -> None:
        """Ends the group: this rank cannot continue."""
        self.link.abort()

    def await_pids(self) -> None:
        """Waits until all ranks are here, and watches them. Raises StartupError, RankGone."""
        self.link.tell_pid(os.getpid())
        self._since = 0.0
        for rank in range(self.size):
            while not (pid := self.link.pid_of(rank)):
                self._look(rank)
                if time.monotonic() - self._since > JOIN_S:
                    raise StartupError(_WHAT, f"rank {rank} has not come within {JOIN_S:.0f} s", _REMEDY)
                time.sleep(_LOOK_S)
            if rank != self.rank and rank not in self._ends.values():
                self.watch(rank, pid)

    def _look(self, missing: int) -> None:
        """Raises RankGone if a peer has ended or failed, or has been waited for too long. missing: a rank
        that is waited for."""
        for descriptor, _ in self._watched.poll(0):
            raise self._gone(self._ends[descriptor])
        failed = self.link.aborting_rank
        if failed >= 0 and failed != self.rank:
            raise RankGone(f"rank {failed} of the worker has failed, and rank {self.rank} ends with it")
        now = time.monotonic()
        if not self._since:
            self._since = self._reported = now
        if now - self._since > DEADLINE_S:
            raise self._late(missing)
        if self.on_wait is not None and now - self._reported >= _REPORT_S:
            self._reported = now
            self.on_wait("other ranks", (now - self._since) / DEADLINE_S)

    def _look_for_the_core(self, missing: int) -> None:
        if self.link.has_left(missing):
            raise EngineGone
        self._look(missing)

    def _fail(self, missing: int) -> None:
        """Raises RankGone: an exchange of a program has failed."""
        self._since = 0.0
        self._look(missing)
        raise self._late(missing)

    def _late(self, rank: int) -> RankGone:
        return RankGone(f"rank {rank} of the worker has not come within {DEADLINE_S:.0f} s")

    def _gone(self, rank: int) -> RankGone:
        return RankGone(f"rank {rank} of the worker is gone, and rank {self.rank} ends with it")

    def check_equal(self, facts: Mapping[str, str]) -> None:
        """Raises StartupError, on all ranks, unless all have the same facts; the first that differs is
        named."""
        own = json.dumps(dict(facts)).encode().ljust(_MOST_FACTS)
        assert len(own) == _MOST_FACTS
        source, target = bytearray(own), bytearray(_MOST_FACTS * self.size)
        self.exchange(_address(source), _MOST_FACTS, _address(target))
        of_ranks = [json.loads(target[at : at + _MOST_FACTS]) for at in range(0, len(target), _MOST_FACTS)]
        for rank, others in enumerate(of_ranks):
            for name, value in of_ranks[0].items():
                if others.get(name) != value:
                    raise StartupError(
                        "the ranks of the worker disagree",
                        f"{name}: rank 0 has {value}, rank {rank} has {others.get(name)}",
                        "start all ranks with the same installation, on the same files",
                    )


def join(initialize: worker_pb2.Initialize, rank: int, on_wait: Callable[[str, float], None]) -> Ranks:
    """Returns the ranks of the group once all are here. on_wait: see Ranks. Raises StartupError."""
    size, name = initialize.tensor_parallel_size, f"pagewire-ranks-{initialize.group_name}"
    num_bytes = RankLink.num_bytes(size)
    with contextlib.ExitStack() as stack:
        first = initialize.first_rank_pid
        descriptor = _find(name, num_bytes, first, on_wait) if rank else _make(name, num_bytes)
        stack.callback(os.close, descriptor)
        ranks = Ranks(RankLink(mmap.mmap(descriptor, num_bytes), rank, size), on_wait)
        if rank:
            ranks.watch(0, first)
        ranks.await_pids()
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
        raise StartupError(_WHAT, f"rank 0: {why}", "free some memory, then start again") from error
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
            raise StartupError(_WHAT, why, "run all ranks on one host, as one user") from error
        if now - reported >= _REPORT_S:
            reported = now
            on_wait("rank 0", (now - began) / JOIN_S)
        time.sleep(_LOOK_S)
    raise StartupError(_WHAT, f"rank 0 (pid {pid}) has made no memory within {JOIN_S:.0f} s", _REMEDY)


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


def _address(memory: bytearray) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(memory))
