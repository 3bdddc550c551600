"""KV blocks on their way between workers, the connections between cores, and what goes wrong meanwhile.

What a core does is real (engine_core.kv_transfer), and so is when its worker reads and answers (worker.loop);
sockets and the copy of bytes are not. Of a block move the tags of its slots (memory.py).
"""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from random import Random

from pagewire.config.engine import Role
from pagewire.internal.v1 import worker_pb2
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from pagewire.ipc.columns import unpack_u32
from pagewire.ipc.transport import pack, unpack
from tests.simulation.clock import VirtualLoop
from tests.simulation.memory import TaggedMemory
from tests.simulation.network import Network, Socket
from tests.simulation.trace import Trace

BLOCK_BYTES = 100
"""What cores take a block for."""
SILENCE_S = 2.0
"""As in worker.kv_transfer.tcp."""
_LOOK_S = 0.05
_KINDS = "lease_blocks", "leased_blocks", "end_lease", "lease_ended"


@dataclass(frozen=True)
class Strike:
    """Something goes wrong in a moment of a pull."""

    moment: int  # of all pulls; every message and every block is one
    victims: str  # see World
    delay: float


@dataclass(frozen=True)
class Moving:
    """How blocks move."""

    block_s: float  # that a block takes, on average
    strikes: tuple[Strike, ...] = ()
    share_prefixes: bool = False  # of frontends
    roles: tuple[Role, ...] = ()  # of cores, by place; none: each does both


class Moves:
    """All that moves in one simulation."""

    def __init__(
        self,
        loop: VirtualLoop,
        trace: Trace,
        random: Random,
        moving: Moving,
        networks: Sequence[Network],
        strike: Callable[[str, int, int], None],
    ) -> None:
        """strike: takes victims, and the places of the reader and of the holder."""
        self.loop, self.trace, self.networks = loop, trace, networks
        self.transfers: dict[str, VirtualTransfer] = {}  # by address
        self._random, self._moving, self._strike = random, moving, strike
        self._num_moments = 0
        self._num_peers = 0
        self._silent_until: dict[frozenset[int], float] = {}

    def passes(self, reader: int, holder: int) -> None:
        """A moment of a pull has come."""
        self._num_moments += 1
        for strike in self._moving.strikes:
            if strike.moment == self._num_moments:
                self.loop.call_later(strike.delay, self._strike, strike.victims, reader, holder)

    def silence(self, reader: int, holder: int) -> None:
        """Between both places nothing arrives for some seconds, and neither of them notices."""
        self._silent_until[frozenset((reader, holder))] = self.loop.time() + 4.0 * self._random.random()

    def is_silent(self, one: int, other: int) -> bool:
        """Whether nothing arrives between both places."""
        return self.loop.time() < self._silent_until.get(frozenset((one, other)), 0.0)

    def block_delay(self) -> float:
        """Seconds until the next block is there."""
        return self._moving.block_s * self._random.expovariate(1.0)

    def new_identity(self, place: int) -> bytes:
        """Of the socket of a core."""
        self._num_peers += 1
        return b"core %d %d" % (place, self._num_peers)


class PeerEnd:
    """A core's end of its connection to another one."""

    def __init__(self, moves: Moves, place: int, holder: int) -> None:
        self.frames: deque[bytes] = deque()
        self._moves, self._places = moves, (place, holder)
        self._unsent: list[bytes] = []
        self._is_connected = False
        self.socket = Socket(moves.networks[holder], moves.new_identity(place), self)
        self.socket.open()

    def send(self, frame: bytes) -> None:
        """Sends as soon as there is a connection."""
        if not self._is_connected:
            self._unsent.append(frame)
        elif not self._moves.is_silent(*self._places):
            self.socket.send(frame)

    def on_frame(self, frame: bytes) -> None:
        """See Listener."""
        if not self._moves.is_silent(*self._places):
            self.frames.append(frame)

    def on_connected(self) -> None:
        """See Listener."""
        self._is_connected = True
        unsent, self._unsent = self._unsent, []
        for frame in unsent:
            self.send(frame)

    def on_disconnected(self) -> None:
        """See Listener."""
        self._is_connected = False


class SimulatedPeers:
    """Implements engine_core.kv_transfer.pulls.Peers, in place of PeerSockets."""

    def __init__(self, moves: Moves, place: int) -> None:
        """place: of the core."""
        self._moves, self._place = moves, place
        self._ends: dict[str, PeerEnd] = {}  # by address

    def send(self, address: str, message: FrontendMessage) -> bool:
        if address not in self._ends:
            self._ends[address] = PeerEnd(self._moves, self._place, int(address))
        self._ends[address].send(pack(message))
        self._note(address, message)
        return True

    def take(self) -> list[tuple[str, EngineMessage]]:
        taken = []
        for address, end in self._ends.items():
            while end.frames:
                message = EngineMessage.FromString(unpack(end.frames.popleft()))
                self._note(address, message)
                taken.append((address, message))
        return taken

    def close(self, address: str) -> None:
        end = self._ends.pop(address, None)
        if end is not None:
            end.socket.close()

    def close_all(self) -> None:
        """The core ends, or is killed."""
        for address in list(self._ends):
            self.close(address)

    def _note(self, address: str, message: FrontendMessage | EngineMessage) -> None:
        kind = message.WhichOneof("message")
        if kind in _KINDS:
            self._moves.trace(f"core-{self._place}", kind, "of core", address)
            self._moves.passes(self._place, int(address))


@dataclass(eq=False)
class _Reading:
    order: worker_pb2.ReadBlocks
    answer: "Future[worker_pb2.BlocksRead]"
    pairs: "deque[tuple[int, int]]"  # blocks and targets that are left
    began: float
    heard: float  # the last block came


class VirtualTransfer:
    """The blocks of one worker, in place of worker.kv_transfer.transfer.BlockTransfer."""

    def __init__(
        self, moves: Moves, place: int, pid: int, memory: TaggedMemory, lives: Callable[[], bool]
    ) -> None:
        """lives: whether the worker does."""
        self.address, self.place, self.memory, self.lives = f"{place}/{pid}", place, memory, lives
        self._moves = moves
        self._readings: dict[int, _Reading] = {}  # by number
        moves.transfers[self.address] = self

    def read(self, order: worker_pb2.ReadBlocks) -> "Future[worker_pb2.BlocksRead]":
        """See BlockTransfer."""
        pairs = deque(zip(unpack_u32(order.blocks), unpack_u32(order.targets), strict=True))
        answer, now = Future[worker_pb2.BlocksRead](), self._moves.loop.time()
        self._readings[order.number] = reading = _Reading(order, answer, pairs, now, now)
        self._later(reading)
        return answer

    def stop(self, number: int) -> None:
        """See BlockTransfer."""
        if number in self._readings:
            reading = self._readings[number]
            self._moves.loop.call_later(
                self._moves.block_delay(), lambda: self._end(reading, "it was stopped")
            )

    def stop_all(self) -> None:
        """See BlockTransfer."""
        for reading in list(self._readings.values()):
            self._end(reading, "it was stopped")

    def _later(self, reading: _Reading) -> None:
        self._moves.loop.call_later(self._moves.block_delay(), self._next, reading)

    def _next(self, reading: _Reading) -> None:
        """A block comes, or does not."""
        if not self.lives() or reading.answer.done():
            return
        holder = self._moves.transfers[reading.order.address]
        now = self._moves.loop.time()
        if not holder.lives():
            self._end(reading, "the other worker has ended the connection")
        elif self._moves.is_silent(self.place, holder.place):
            if now - reading.heard >= SILENCE_S:
                self._end(reading, "timed out")
            else:
                self._moves.loop.call_later(_LOOK_S, self._next, reading)
        elif not reading.pairs:
            self._end(reading, "")
        else:
            reading.heard = now
            block, target = reading.pairs.popleft()
            self.memory.write(target, holder.memory.read(block))
            self._moves.passes(self.place, holder.place)
            self._later(reading)

    def _end(self, reading: _Reading, problem: str) -> None:
        if reading.answer.done():
            return
        del self._readings[reading.order.number]
        us = round(1e6 * (self._moves.loop.time() - reading.began))
        self._moves.trace("worker", self.address, "has read blocks", problem)
        reading.answer.set_result(
            worker_pb2.BlocksRead(number=reading.order.number, problem=problem, duration_us=us)
        )
