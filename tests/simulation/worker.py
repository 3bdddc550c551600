"""The worker's process, which may outlive its engine core. In a simulation it is a fiber.

Its execute loop, and how it goes from one core to the next, are real: worker.loop, worker.core_succession.
"""

from collections import deque
from contextlib import suppress
from math import prod
from random import Random
from typing import TYPE_CHECKING, cast

from engine_core.io.worker_process import SEE_ABOVE, WorkerDied
from pagewire import __version__
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.transport import pack, unpack
from tests.simulation.device import Device
from tests.simulation.machine import Killed, Machine
from tests.simulation.moves import BLOCK_BYTES, VirtualTransfer
from tests.simulation.network import Wire
from tests.simulation.poison import Poisons
from tests.simulation.ranks import VirtualRanks
from tests.simulation.workload import Workload
from worker.channel import Channel, EngineGone
from worker.core_succession import LoadedWorker, serve_cores
from worker.cpu.rank_runner import of_rank
from worker.group_shape import group_shape
from worker.loop import RankGone
from worker.main import await_end

if TYPE_CHECKING:
    from tests.simulation.host import CoreSocket, Host


class Line:
    """What the sockets of a core and of a worker share while both live."""

    def __init__(self, host: "Host", channel: "SimulatedChannel", socket: "CoreSocket") -> None:
        self.channel, identity = channel, channel.identity
        self.up = Wire(host.loop, host.hop, lambda frame: socket.deliver(identity, frame))
        self.down = Wire(host.loop, host.hop, channel.deliver)


class SimulatedChannel:
    """In place of worker.channel.Channel: connects to the core at the address as soon as there is one."""

    def __init__(self, worker: "WorkerProcess") -> None:
        self._worker, self._host = worker, worker.host
        self.line: Line | None = None
        self._connect()

    def renew(self) -> None:
        """See Channel."""
        self._host.cut(self.line)
        self._connect()

    def _connect(self) -> None:
        self.identity = self._host.new_identity()
        self.line, self.is_gone = None, False
        self._unsent: list[bytes] = []
        self._frames: deque[bytes] = deque()
        self.look()

    def look(self) -> None:
        """Looks for a core in a moment."""
        self._host.loop.call_later(self._host.hop(), self._try, self.identity)

    def _try(self, identity: bytes) -> None:
        socket = self._host.sockets.get(self._worker.address)
        if self.line is not None or identity != self.identity or socket is None or not self._worker.lives:
            return
        self.line = Line(self._host, self, socket)
        socket.lines.append(self.line)
        for frame in self._unsent:
            self.line.up.send(frame)

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        """See Channel."""
        if message.WhichOneof("message") == "ready" and message.ready.HasField("kept_cache"):
            self._worker.check_kept(message.ready.kept_cache)
        if self.line is not None:
            self.line.up.send(pack(message))
        else:
            self._unsent.append(pack(message))

    def deliver(self, frame: bytes) -> None:
        """A frame arrives."""
        self._frames.append(frame)

    def lose(self, line: Line) -> None:
        """The end of the core is noticed."""
        self.is_gone = self.is_gone or line is self.line

    def has_command(self) -> bool:
        """See Channel."""
        return bool(self._frames) or self.is_gone

    def receive(self, seconds: float | None = None) -> worker_pb2.WorkerCommand:
        """See Channel. Raises EngineGone, Killed."""
        loop = self._host.loop
        until = float("inf") if seconds is None else loop.time() + seconds
        while not self._frames:
            if self.is_gone:
                raise EngineGone
            if loop.time() >= until:
                return worker_pb2.WorkerCommand()
            self._worker.processor.wait(until, lambda: bool(self._frames) or self.is_gone)
        return worker_pb2.WorkerCommand.FromString(unpack(self._frames.popleft()))


class WorkerProcess:
    """One worker, from its start until it is killed."""

    def __init__(
        self,
        machine: Machine,
        host: "Host",
        workload: Workload,
        random: Random,
        poisons: Poisons,
        pid: int,
        address: str,
        rank: int,
    ) -> None:
        """address: where it looks for its core. rank: of its group."""
        self.host, self.pid, self.address, self.rank = host, pid, address, rank
        self.lives, self.is_seen_dead = True, False
        self.device: Device | None = None
        self._workload, self._random, self._poisons = workload, random, poisons
        self._machine, self.processor = machine, machine.processor(self._run)
        self.channel = SimulatedChannel(self)

    def kill(self) -> None:
        """SIGKILL: what it has sent may arrive, then its core hears of its end."""
        if not self.lives:
            return
        self.lives, self.processor.is_killed = False, True
        self._machine.num_worker_deaths += 1
        loop = self.host.loop
        noticed = self.host.cut(self.channel.line)

        def see() -> None:
            self.is_seen_dead = True

        loop.call_at(noticed, see)

    def _strike(self, when: float, victim: str) -> None:
        """victim: "": the worker, from outside."""

        def kill() -> None:
            self.host.was_killed = is_outside
            self.kill()

        if victim == "core":
            self.host.strike_core(when)
            return
        is_outside = victim != "worker"
        self.host.loop.call_at(when, kill)

    def check_kept(self, kept: worker_pb2.KeptCache) -> None:
        """What a core is told of the blocks must be true. Raises WrongMemory."""
        assert self.device is not None
        self.device.memory.check_kept(kept)

    def _run(self) -> None:
        hello = worker_pb2.WorkerHello(rank=self.rank, pid=self.pid, version=__version__)
        try:
            self.channel.send(worker_pb2.WorkerMessage(hello=hello))
            loaded = self._load()
            if loaded is not None:
                serve_cores(cast(Channel, self.channel), hello, loaded, outlives_core=True)
        except RankGone:
            with suppress(Killed):
                await_end(cast(Channel, self.channel))
        except (EngineGone, Killed):
            pass
        self.kill()

    def _load(self) -> LoadedWorker | None:
        """None: the core sent Shutdown instead. Raises EngineGone, Killed."""
        command = self.channel.receive()
        if command.WhichOneof("command") == "shutdown":
            return None
        loop, restart = self.host.loop, self._workload.settings.restart
        self.processor.wait(loop.time() + restart * self._random.random())
        arguments = self._workload, self._random, self._poisons, self._strike
        ranks = self._join(command.initialize)
        self.device = Device(self.processor, command.initialize, *arguments)
        self.device.ranks = ranks
        if (moves := self.host.moves) is not None:
            parts = self.host.place, self.pid, self.device.memory, lambda: self.lives
            self.device.transfer = VirtualTransfer(moves, *parts)
            self.device.ready.transfer_address = self.device.transfer.address
            self.device.ready.transfer_block_bytes = BLOCK_BYTES
        self.channel.send(worker_pb2.WorkerMessage(ready=self.device.ready))
        return LoadedWorker(of_rank(self.device, ranks), command.initialize, self.device.ready)

    def _join(self, initialize: worker_pb2.Initialize) -> VirtualRanks | None:
        """None: it is no group. Raises RankGone."""
        size, hop = prod(group_shape(initialize)), self._workload.settings.worker_hop
        if size == 1:
            return None
        group = self.host.group(initialize.group_name, size)
        return group.join(self.rank, self.pid, self.processor, self._random, hop)


class SimulatedChild:
    """In place of engine_core.io.worker_process.ParentsWorker: its descriptor is its process id."""

    def __init__(self, pid: int, on_dismissed: "object") -> None:
        self.pid = self.pidfd = pid
        self._on_dismissed = on_dismissed

    def read_status(self) -> None:
        """See ParentsWorker."""

    def cause_of_death(self, name: str, why: str) -> WorkerDied:
        """See ParentsWorker."""
        return WorkerDied(f"{name} is gone", "the simulation wants it so", SEE_ABOVE)

    def kill(self) -> None:
        """See ParentsWorker. Not for a simulation: no worker hangs."""
        raise AssertionError("a worker hangs")

    def close(self, grace: float) -> None:
        """See ParentsWorker."""
        assert callable(self._on_dismissed)
        self._on_dismissed(self.pid)
