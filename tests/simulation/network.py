"""The hop between frontends and core without ZeroMQ: frames take time, arrive in order, or get lost.

In place of frontend.engine.socket.EngineSocket and engine_core.io.frontend_sockets.FrontendSockets, with
what they promise and no more:

- frames of one connection arrive in the order in which they were sent, each after a delay of its own;
  frames of different connections pass one another;
- when a connection breaks, some of what is under way still arrives and the rest is lost. Each side
  notices after a while, and whatever it sends until then is lost too;
- a frontend connects again by itself; a core that cannot reach a frontend hears that it is gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random

from engine_core.io.inbox import FrontendGone, Inbox, Received
from frontend.engine.socket import Listener
from pagewire.internal.v1.engine_pb2 import EngineMessage, FrontendMessage
from pagewire.ipc.transport import pack, unpack
from tests.simulation.clock import VirtualLoop
from tests.simulation.trace import Trace


class Wire:
    """One direction of a connection."""

    def __init__(
        self, loop: VirtualLoop, delay: Callable[[], float], deliver: Callable[[bytes], None]
    ) -> None:
        self._loop, self._delay, self._deliver = loop, delay, deliver
        self._frames: deque[bytes] = deque()
        self._arrival = 0.0  # of the last frame
        self._is_cut = False

    def send(self, frame: bytes) -> None:
        """Arrives later, or never."""
        if not self._is_cut:
            self._frames.append(frame)
            self._arrival = max(self._arrival, self._loop.time() + self._delay())
            self._loop.call_at(self._arrival, self._arrive)

    def cut(self, random: Random, *, receiver_lives: bool) -> float:
        """Loses what comes from now on, and some of what is under way. When the rest has arrived."""
        self._is_cut = True
        kept = random.randint(0, len(self._frames)) if receiver_lives else 0
        while len(self._frames) > kept:
            self._frames.pop()
        return max(self._arrival, self._loop.time())

    def flush(self) -> float:
        """Sends nothing more; what is under way arrives. When all of it has."""
        self._is_cut = True
        return max(self._arrival, self._loop.time())

    def _arrive(self) -> None:
        if self._frames:
            self._deliver(self._frames.popleft())


class Connection:
    """What one socket of a frontend and the core share while both live."""

    def __init__(self, network: Network, socket: Socket, inbox: Inbox) -> None:
        self.socket, self._inbox = socket, inbox
        self.up = Wire(network.loop, network.delay, self._to_core)
        self.down = Wire(network.loop, network.delay, socket.listener.on_frame)

    def _to_core(self, frame: bytes) -> None:
        message = FrontendMessage.FromString(unpack(frame))
        self._inbox.put(Received(self.socket.identity, message, self.socket.network.loop.time()))


class Socket:
    """A frontend's end: see frontend.engine.client.Socket."""

    def __init__(self, network: Network, identity: bytes, listener: Listener) -> None:
        self.network, self.identity, self.listener = network, identity, listener
        self.name = network.name(identity)
        self.connection: Connection | None = None
        self._is_open = False

    def open(self) -> None:
        """Connects in a while, as soon as there is a core."""
        self._is_open = True
        self._connect_later()

    def send(self, frame: bytes) -> bool:
        """False when there is no connection, as far as this side knows."""
        if self.connection is None:
            return False
        self.connection.up.send(frame)
        return True

    def close(self) -> None:
        """The process ends: it hears nothing more, and the core of it only when it sends something."""
        self._is_open = False
        self.network.cut(self, frontend_lives=False)
        self.connection = None

    def lose(self, connection: Connection) -> None:
        """The break is noticed."""
        if self.connection is connection:
            self.connection = None
            self.network.trace(self.name, "notices that its connection is lost")
            self.listener.on_disconnected()
            self._connect_later()

    def _connect_later(self) -> None:
        pause = self.network.delay() + self.network.reconnect * self.network.random.random()
        self.network.loop.call_later(pause, self._connect)

    def _connect(self) -> None:
        if not self._is_open or self.connection is not None:
            return
        self.connection = self.network.connect(self)
        if self.connection is None:
            self._connect_later()
        else:
            self.network.trace(self.name, "connects")
            self.listener.on_connected()


class Network:
    """All connections to one core; none while it does not listen."""

    def __init__(
        self,
        loop: VirtualLoop,
        trace: Trace,
        random: Random,
        names: dict[bytes, str],
        latency: float,
        reconnect: float,
    ) -> None:
        """names: of frontends, for all networks of a simulation.

        latency: seconds that a frame takes, on average; now and then it takes much longer.

        reconnect: seconds between two attempts to connect, at most.
        """
        self.loop, self.trace, self.random = loop, trace, random
        self.reconnect, self._latency = reconnect, latency
        self.inbox: Inbox | None = None  # of the core that listens
        self._connections: dict[bytes, Connection] = {}  # as the core sees them
        self._names = names

    def name(self, identity: bytes) -> str:
        """What traces call a frontend: identities are random."""
        return self._names.setdefault(identity, f"frontend-{len(self._names)}")

    def delay(self) -> float:
        """Seconds, for one frame."""
        slow = 20.0 if self.random.random() < 0.02 else 1.0
        return slow * self._latency * self.random.expovariate(1.0)

    def socket(self, address: str, identity: bytes, listener: Listener) -> Socket:
        """What an EngineClient makes its socket with."""
        return Socket(self, identity, listener)

    # The core's end.

    def listen(self, inbox: Inbox) -> None:
        """A core begins to listen; what comes goes to its inbox."""
        self.inbox = inbox

    def send(self, frontend: bytes, message: EngineMessage) -> None:
        """Sends from the core, which learns of frontends that cannot be reached."""
        connection = self._connections.get(frontend)
        if connection is not None:
            connection.down.send(pack(message))
        else:
            self.trace("core", "cannot reach", self.name(frontend))
            self.loop.call_soon(self.lose_frontend, frontend)

    def lose_frontend(self, frontend: bytes) -> None:
        """The core, if there is one, hears that a frontend cannot be reached."""
        if self.inbox is not None:
            self.inbox.put(FrontendGone(frontend))

    def core_dies(self) -> None:
        """Breaks all connections and stops listening."""
        self.inbox = None
        connections, self._connections = self._connections, {}
        for connection in connections.values():
            self._break(connection, core_lives=False, frontend_lives=True)

    # Connections.

    def connect(self, socket: Socket) -> Connection | None:
        """Returns None when the core does not listen, or when the core still holds the socket's last
        connection."""
        if self.inbox is None or socket.identity in self._connections:
            return None
        self._connections[socket.identity] = connection = Connection(self, socket, self.inbox)
        return connection

    def cut(self, socket: Socket, *, frontend_lives: bool = True) -> None:
        """A frontend's connection breaks."""
        connection = self._connections.get(socket.identity)
        if connection is not None:
            noticed = self._break(connection, core_lives=True, frontend_lives=frontend_lives)
            self.loop.call_at(noticed, self._forget, socket.identity, connection)

    def _forget(self, identity: bytes, connection: Connection) -> None:
        if self._connections.get(identity) is connection:
            del self._connections[identity]

    def _break(self, connection: Connection, *, core_lives: bool, frontend_lives: bool) -> float:
        """Tells the frontend when it has what still arrives; returns when the core has."""
        down = connection.down.cut(self.random, receiver_lives=frontend_lives) + self.delay()
        self.loop.call_at(down, connection.socket.lose, connection)
        return connection.up.cut(self.random, receiver_lives=core_lives) + self.delay()
