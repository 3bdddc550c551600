"""How the tensor-parallel ranks of several hosts find one another, and exchange bytes.

They meet in a TCPStore of torch.distributed, for which rank 0 listens before it greets the engine core
(worker.meeting), and are connected by gloo, its backend for CPUs. gloo copies; each rank adds for itself.

A peer that ends closes its connections, which ends an exchange at once. One that says nothing any more is
noticed by the engine core, whose connections to ranks have heartbeats, and which ends the group when it loses
one: so a rank that waits looks whether its own connection to the core lives. A group over several hosts does
not outlive its core.
"""

import ctypes
import time
from collections.abc import Callable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore, Work

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.channel import EngineGone
from worker.cpu.rank_peers import CANNOT_JOIN, DEADLINE_S, JOIN_S, RankPeers
from worker.loop import RankGone
from worker.meeting import Meeting

_CONNECT = timedelta(seconds=60)
"""Time for a connection to a process that may still import torch."""
_LOOK_S = 0.1
_REPORT_S = 1.0
_REACH = "let the hosts of the group reach one another on all ports"


class HostRanks(RankPeers):
    """The ranks of a group over several hosts."""

    def __init__(self, rank: int, size: int, meeting: Meeting, on_wait: Callable[[str, float], None]) -> None:
        """on_wait: see RankPeers."""
        self.rank, self.size, self.on_wait = rank, size, on_wait
        self._meeting = meeting
        self._since = self._reported = 0.0
        self._store: TCPStore | None = None  # of rank 0, it serves the others
        self._gloo: ProcessGroupGloo | None = None

    def connect(self, name: str, port: int) -> None:
        """Connects to all ranks, once they are here. name: of the group. port: where rank 0 listens. Raises
        StartupError, RankGone."""
        try:
            self._store = self._open_store(port)
            keys = PrefixStore(name, self._store)
            keys.set(str(self.rank), "here")
            for rank in range(self.size):
                self._await(rank, keys)
            options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
            options._devices = [ProcessGroupGloo.create_device(hostname=self._meeting.own_address())]
            options._timeout = _CONNECT
            self._gloo = ProcessGroupGloo(keys, self.rank, self.size, options)
            self._gloo._set_default_timeout(timedelta(seconds=2 * DEADLINE_S))
        except (OSError, RuntimeError) as error:
            why = f"rank {self.rank} on {self._meeting.host} cannot connect to the others: {_line(error)}"
            raise StartupError(CANNOT_JOIN, why, _REACH, may_pass=True) from error

    def _open_store(self, port: int) -> TCPStore:
        if self.rank:
            return TCPStore(self._meeting.address, port, None, False, _CONNECT, wait_for_workers=False)
        descriptor = self._meeting.take_socket()
        return TCPStore(
            self._meeting.address,
            port,
            None,
            True,
            _CONNECT,
            wait_for_workers=False,
            master_listen_fd=descriptor,
        )

    def _await(self, rank: int, keys: PrefixStore) -> None:
        self._since = 0.0
        while not keys.check([str(rank)]):
            self._look(f"rank {rank}", JOIN_S)
            time.sleep(_LOOK_S)

    def exchange(self, source: int, count: int, target: int) -> None:
        assert self._gloo is not None
        part = _bytes_at(source, count).clone()  # an exchange that is abandoned goes on with its own memory
        parts = torch.empty(count * self.size, dtype=torch.uint8)
        self._since = 0.0
        try:
            work = self._gloo._allgather_base(parts, part)  # type: ignore[attr-defined]
            self._finish(work)
        except RuntimeError as error:
            raise RankGone(f"rank {self.rank} of the worker has lost another one: {_line(error)}") from error
        _bytes_at(target, count * self.size).copy_(parts)

    def _finish(self, work: Work) -> None:
        """Raises RuntimeError where a connection has ended; RankGone."""
        try:
            while not work.is_completed():
                try:
                    work.wait(timedelta(seconds=_LOOK_S))
                except RuntimeError:  # also where no more than this time has passed
                    self._look("other ranks", DEADLINE_S)
            work.wait()
        except BaseException:
            if not work.is_completed():
                self._meeting.abandoned = self._gloo
            raise

    def begin_step(self) -> None:
        """A plan that some ranks have got alone is begun, and ends with the group."""
        if self._meeting.is_core_lost():
            raise EngineGone

    def leave_core(self) -> None:
        raise RankGone(f"rank {self.rank} of the worker ends with its engine core, as all of its group")

    def abort(self) -> None:
        """The end of this process closes its connections."""

    def _look(self, what: str, limit_s: float) -> None:
        """Raises RankGone if the core is lost, or something has been waited for too long. what: that is."""
        if self._meeting.is_core_lost():
            raise RankGone(f"rank {self.rank} of the worker ends with its engine core")
        now = time.monotonic()
        if not self._since:
            self._since = self._reported = now
        if now - self._since > limit_s:
            raise RankGone(f"rank {self.rank} of the worker has waited {limit_s:.0f} s for {what}")
        if self.on_wait is not None and now - self._reported >= _REPORT_S:
            self._reported = now
            self.on_wait(what, (now - self._since) / limit_s)


def join_hosts(
    initialize: worker_pb2.Initialize, rank: int, meeting: Meeting, on_wait: Callable[[str, float], None]
) -> HostRanks:
    """Returns the ranks of the group once all are connected. on_wait: see RankPeers. Raises StartupError,
    RankGone."""
    ranks = HostRanks(rank, initialize.tensor_parallel_size, meeting, on_wait)
    ranks.connect(initialize.group_name, meeting.port or initialize.store_port)
    return ranks


def _bytes_at(address: int, count: int) -> torch.Tensor:
    """Returns the bytes [count] at an address, which stay where they are."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _line(error: Exception) -> str:
    """Returns the first sentence of a message, which may go on with advice and a stack."""
    return str(error).partition("\n")[0].partition(". ")[0]
