"""The host of an engine core and its workers: addresses, process ids, orders of the supervisor.

What the core does with its workers is real (engine_core.worker_supply, engine_core.io.worker_group, and of
engine_core.io.rank_socket all but the socket); the socket and the processes are not.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from unittest import mock

from engine_core.io.asides import Asides
from engine_core.io.inbox import Inbox
from engine_core.io.process_control import Stopped
from engine_core.io.rank import Rank
from engine_core.io.rank_socket import RankSocket
from pagewire.host.spawn import KeptWorkers, Status, WorkerStarted
from tests.simulation.machine import Machine, Processor
from tests.simulation.moves import Moves
from tests.simulation.poison import Poisons
from tests.simulation.ranks import GroupMemory
from tests.simulation.worker import Line, SimulatedChild, WorkerProcess
from tests.simulation.workload import Workload

_SOCKET = -1
"""Descriptor of every simulated socket."""


class CoreSocket(RankSocket):
    """The core's end of the lines to its workers."""

    def __init__(
        self, context: "Host", address: str, stop: object, key: object, on_wait: Callable[[], None]
    ) -> None:
        """Binds. See RankSocket; context: of the core."""
        self.address, self.on_wait, self.descriptor = address, on_wait, _SOCKET
        self.ranks: list[Rank] = []
        self.asides = Asides()
        self.num_bad_frames = 0
        self.lines: list[Line] = []
        self._host, self._is_idle, self._has_hosts = context, False, False
        self._frames: deque[tuple[bytes, bytes]] = deque()
        self._socket = _Reader(self._frames)  # type: ignore[assignment]
        context.bind(self)

    def watch(self, descriptor: int) -> None:
        """See RankSocket. All workers are watched."""

    @contextmanager
    def watching(self, descriptor: int) -> Iterator[None]:
        """See RankSocket. The descriptor is that of the inbox."""
        self._is_idle = True
        try:
            yield
        finally:
            self._is_idle = False

    def close(self) -> None:
        """See RankSocket. Of a core that is killed some messages get lost."""
        self._host.unbind(self)

    def deliver(self, identity: bytes, frame: bytes) -> None:
        """A frame arrives."""
        self._frames.append((identity, frame))

    def send(self, rank: Rank, frame: bytes) -> None:
        """See RankSocket."""
        line = next((line for line in self.lines if line.channel.identity == rank.peer), None)
        if line is not None:  # otherwise it has died, and the next wait says so
            line.down.send(frame)

    def poll(self, seconds: float) -> set[int]:
        """See RankSocket."""
        host, is_idle = self._host, self._is_idle
        inbox, processor = host.inbox, host.processor
        dead = {rank.child.pid for rank in self.ranks if rank.child is not None}

        def has_news() -> bool:
            events = is_idle and (bool(inbox) or processor.is_over)
            return bool(events or self._frames or host.is_stopped or host.dead & dead)

        if is_idle:
            processor.check_silence()
        if not has_news():
            processor.wait(processor.loop.time() + seconds, has_news)
        if host.is_stopped or (is_idle and processor.is_over and not inbox):
            raise Stopped
        ready = {inbox.fileno()} if is_idle and inbox else set()
        if self._frames:
            return ready | {self.descriptor}
        for rank in self.ranks:
            rank.check_alive(host.dead)
        return ready

    def look(self, pause: float) -> None:
        """See RankSocket. No worker hangs."""
        self.on_wait()


class _Reader:
    """As much of a ROUTER socket as RankSocket.receive() needs."""

    more = False

    def __init__(self, frames: deque[tuple[bytes, bytes]]) -> None:
        self._frames, self.bytes = frames, b""

    def recv(self, flags: int = 0, copy: bool = True) -> object:
        """The identity, then the frame."""
        if not copy:
            return self
        identity, self.bytes = self._frames.popleft()
        return identity

    def get(self, option: int) -> int:
        """The descriptor of the connection, of which there is none."""
        return -1


class SimulatedStatus(Status):
    """What a core tells the supervisor, and is told."""

    def __init__(self, host: "Host") -> None:
        super().__init__()
        self._host = host
        self._started: deque[int] = deque()

    def request_worker(self, arguments: object) -> None:
        """See Status."""
        words = [str(word) for word in arguments]  # type: ignore[attr-defined]
        flags = dict(word.split("=", 1) for word in words if "=" in word)
        self._started.append(self._host.start(flags["--engine"], int(flags["--rank"])))

    def next(self, kind: object) -> WorkerStarted:
        """See ParentOrders."""
        return WorkerStarted(self._started.popleft())

    def dismissed(self, pid: int) -> None:
        """See Status."""
        self._host.end(pid)


class Host:
    """Where one engine core runs, life after life."""

    def __init__(
        self,
        machine: Machine,
        processor: Processor,
        workload: Workload,
        random: Random,
        poisons: Callable[[], Poisons],
        place: int,
        moves: Moves | None,
    ) -> None:
        """processor: the core's. poisons: of one worker. place: of the core among several. moves: None:
        workers exchange no blocks."""
        self.place, self.moves = place, moves
        self.processor, self.loop = processor, machine.loop
        self.inbox: Inbox  # of this life
        self.is_up = self.is_stopped = False  # the core lives; it was told to end
        self.is_draining = False  # it was told to end when its requests have moved
        self.was_killed = False  # the last death was by SIGKILL, of the core or of its worker
        self.sockets: dict[str, CoreSocket] = {}  # by address
        self.workers: dict[int, WorkerProcess] = {}  # of the core, by process id
        self._groups: dict[str, GroupMemory] = {}  # by name
        self._machine, self._workload, self._random, self._poisons = machine, workload, random, poisons
        self._last_pid = self._last_identity = 0

    @property
    def dead(self) -> set[int]:
        """Process ids of workers whose end can be seen."""
        return {pid for pid, worker in self.workers.items() if worker.is_seen_dead}

    def hop(self) -> float:
        """Seconds that a frame takes."""
        return self._workload.settings.worker_hop * self._random.random()

    def new_identity(self) -> bytes:
        """Of a socket."""
        self._last_identity += 1
        return self._last_identity.to_bytes(4, "little")

    # The core's sockets.

    def bind(self, socket: CoreSocket) -> None:
        """A core begins to listen to workers."""
        assert socket.address not in self.sockets, "the address is in use"
        self.sockets[socket.address] = socket
        for worker in self.workers.values():
            worker.channel.look()

    def unbind(self, socket: CoreSocket) -> None:
        """A core does not listen any more, or has died."""
        if self.sockets.get(socket.address) is not socket:
            return
        del self.sockets[socket.address]
        for line in socket.lines:
            line.up.cut(self._random, receiver_lives=False)
            if self.processor.is_killed:
                noticed = line.down.cut(self._random, receiver_lives=True)
            else:
                noticed = line.down.flush()
            self.loop.call_at(noticed + self.hop(), line.channel.lose, line)

    def cut(self, line: Line | None) -> float:
        """A worker's line ends. Returns when the core can know it."""
        if line is None:
            return self.loop.time()
        line.down.cut(self._random, receiver_lives=False)
        return line.up.cut(self._random, receiver_lives=True) + self.hop()

    # The supervisor.

    def start(self, address: str, rank: int) -> int:
        """Starts a worker, or one rank of it; returns its process id."""
        self._last_pid += 1
        pid, random = self._last_pid, Random(self._random.random())
        arguments = self._machine, self, self._workload, random, self._poisons(), pid, address, rank
        self.workers[pid] = WorkerProcess(*arguments)
        return pid

    def group(self, name: str, size: int) -> GroupMemory:
        """Returns what so many ranks share."""

        def lives(pid: int) -> bool:
            return pid in self.workers and self.workers[pid].lives

        if name not in self._groups:
            self._groups[name] = GroupMemory(size, lives)
        return self._groups[name]

    def end(self, pid: int) -> None:
        """Ends a worker that is not needed any more."""
        self.workers.pop(pid).kill()

    def end_all(self) -> None:
        """Ends all workers."""
        for pid in list(self.workers):
            self.end(pid)

    def kept(self) -> KeptWorkers | None:
        """Returns the workers that the next core may adopt. See pagewire.supervisor.worker_processes."""
        addresses = {worker.address for worker in self.workers.values()}
        if len(addresses) != 1 or not all(worker.lives for worker in self.workers.values()):
            return None
        return KeptWorkers(addresses.pop(), tuple(self.workers))

    def strike_core(self, when: float, *, is_signal: bool = False) -> None:
        """Kills the core at some time, unless it has died before. is_signal: from outside."""
        life = self.inbox

        def kill() -> None:
            if self.is_up and self.inbox is life:
                self.processor.is_killed, self.was_killed = True, is_signal

        self.loop.call_at(when, kill)


@contextmanager
def simulated_processes() -> Iterator[None]:
    """Has all cores of this process use simulated sockets and workers."""
    with (
        mock.patch("worker.load.open_transfer", lambda *_: None),  # see moves.py
        mock.patch("engine_core.io.worker_group.RankSocket", CoreSocket),
        mock.patch("engine_core.worker_supply.ParentsWorker", SimulatedChild),
    ):
        yield
