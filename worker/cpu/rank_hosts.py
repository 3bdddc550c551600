"""How the ranks of several hosts find one another, and exchange bytes.

They meet in a TCPStore of torch.distributed, for which rank 0 listens before it greets the engine core
(worker.meeting), and are connected by gloo, its backend for CPUs. gloo copies; each rank adds for itself.

A peer that ends closes its connections, which ends an exchange at once. One that says nothing any more is
noticed by the engine core, whose connections to ranks have heartbeats, and which ends the group when it loses
one: so a rank that waits looks whether its own connection to the core lives. A group over several hosts does
not outlive its core.
"""

import ctypes
import math
import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore, Work

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from worker.channel import EngineGone
from worker.cpu.rank_peers import CANNOT_JOIN, DEADLINE_S, JOIN_S, Exchange, RankPeers
from worker.group_shape import group_shape, parts_of
from worker.loop import RankGone
from worker.meeting import Meeting

_CONNECT = timedelta(seconds=60)
"""Time for a connection to a process that may still import torch."""
_LOOK_S = 0.1
_REACH = "let the hosts of the group reach one another on all ports"


class Connections(Exchange):
    """Those of this rank with all others, or with some of them."""

    def __init__(self, ranks: "HostRanks", keys: PrefixStore, number: int, size: int) -> None:
        """Connects. keys: of these ranks alone. number: of this one among them. Raises RuntimeError."""
        self._ranks, self._size = ranks, size
        options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
        options._devices = [ProcessGroupGloo.create_device(hostname=ranks.own_address)]
        options._timeout = _CONNECT
        self._gloo = ProcessGroupGloo(keys, number, size, options)
        self._gloo._set_default_timeout(timedelta(seconds=2 * DEADLINE_S))

    def exchange(self, source: int, count: int, target: int) -> None:
        part = _bytes_at(source, count).clone()  # an exchange that is abandoned goes on with its own memory
        parts = torch.empty(count * self._size, dtype=torch.uint8)
        try:
            work = self._gloo._allgather_base(parts, part)  # type: ignore[attr-defined]
            self._ranks.finish(work, self._gloo)
        except RuntimeError as error:
            rank = self._ranks.rank
            raise RankGone(f"rank {rank} of the worker has lost another one: {_line(error)}") from error
        _bytes_at(target, count * self._size).copy_(parts)


class HostRanks(RankPeers):
    """The ranks of a group over several hosts."""

    def __init__(self, rank: int, size: int, meeting: Meeting, on_wait: Callable[[str, float], None]) -> None:
        """on_wait: see RankPeers."""
        self.rank, self.size, self.on_wait = rank, size, on_wait
        self._meeting = meeting
        self._store: TCPStore | None = None  # of rank 0, it serves the others
        self._every: Connections
        self.parts: dict[tuple[int, ...], Connections] = {}

    def connect(self, name: str, port: int, parts: Iterable[tuple[int, ...]] = ()) -> None:
        """Connects to all ranks, once they are here. name: of the group. port: where rank 0 listens. parts:
        see parts_of(). Raises StartupError, RankGone."""
        try:
            self._store = self._open_store(port)
            keys = PrefixStore(name, self._store)
            keys.set(str(self.rank), "here")
            for rank in range(self.size):
                self._await(rank, keys)
            self._every = Connections(self, keys, self.rank, self.size)
            for part in parts:
                if self.rank in part:
                    of_part = PrefixStore(f"{name}/{'-'.join(map(str, part))}", self._store)
                    self.parts[part] = Connections(self, of_part, part.index(self.rank), len(part))
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
        self._every.exchange(source, count, target)

    @property
    def own_address(self) -> str:
        """By which other hosts reach this one."""
        return self._meeting.own_address()

    def finish(self, work: Work, gloo: ProcessGroupGloo) -> None:
        """Waits for an exchange. Raises RuntimeError where a connection has ended; RankGone."""
        self._since = 0.0
        try:
            while not work.is_completed():
                try:
                    work.wait(timedelta(seconds=_LOOK_S))
                except RuntimeError:  # also where no more than this time has passed
                    self._look("other ranks")
            work.wait()
        except BaseException:
            if not work.is_completed():
                self._meeting.abandoned = gloo
            raise

    def begin_step(self, *, micro_batch: bool = False) -> None:
        """A plan that some ranks have got alone is begun, and ends with the group."""
        if self._meeting.is_core_lost():
            raise EngineGone

    def leave_core(self) -> None:
        raise RankGone(f"rank {self.rank} of the worker ends with its engine core, as all of its group")

    def abort(self) -> None:
        """The end of this process closes its connections."""

    def _check_peers(self) -> None:
        if self._meeting.is_core_lost():
            raise RankGone(f"rank {self.rank} of the worker ends with its engine core")


def join_hosts(
    initialize: worker_pb2.Initialize, rank: int, meeting: Meeting, on_wait: Callable[[str, float], None]
) -> HostRanks:
    """Returns the ranks of the group once all are connected. on_wait: see RankPeers. Raises StartupError,
    RankGone."""
    shape = group_shape(initialize)
    ranks = HostRanks(rank, math.prod(shape), meeting, on_wait)
    ranks.connect(initialize.group_name, meeting.port or initialize.store_port, parts_of(*shape))
    return ranks


def _bytes_at(address: int, count: int) -> torch.Tensor:
    """Returns the bytes [count] at an address, which stay where they are."""
    return torch.frombuffer((ctypes.c_uint8 * count).from_address(address), dtype=torch.uint8)


def _line(error: Exception) -> str:
    """Returns the first sentence of a message, which may go on with advice and a stack."""
    return str(error).partition("\n")[0].partition(". ")[0]
