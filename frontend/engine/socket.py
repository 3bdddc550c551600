"""The DEALER socket to an engine core, on the event loop.

ZeroMQ's descriptor is edge-triggered: after each wake-up, and after each send (which may consume the signal),
everything readable is read.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

import zmq
from zmq.utils.monitor import parse_monitor_message

from pagewire.errors import StartupError
from pagewire.ipc.curve import ClientKey
from pagewire.ipc.transport import connect_dealer, is_readable, receive

log = logging.getLogger(__name__)

_FRAMES_PER_TURN = 64
"""Frames read before the rest of the event loop gets a turn."""
_LINGER_MS = 200
"""Time that the last messages (aborts) get to leave the process."""


class Listener(Protocol):
    """Receives a socket's events."""

    def on_frame(self, frame: bytes) -> None:
        """A message was received."""

    def on_connected(self) -> None:
        """A connection was made; later messages are sent over it."""

    def on_disconnected(self) -> None:
        """The connection was lost, after everything received over it was handed over."""


class Socket(Protocol):
    """A socket to one core; another implementation may stand for the network."""

    def open(self) -> None:
        """Starts connecting. Raises StartupError."""

    def send(self, frame: bytes) -> bool:
        """Sends without waiting. False when there is no connection or the core does not read."""

    def close(self) -> None:
        """Disconnects. Idempotent."""


MakeSocket = Callable[[str, bytes, Listener], Socket]
"""Creates a socket from an address, this frontend's identity, and a listener."""


class EngineSocket:
    """Connects in open(), and again whenever the connection is lost."""

    def __init__(
        self, address: str, identity: bytes, listener: Listener, key: ClientKey | None = None
    ) -> None:
        """key: required for tcp."""
        self._key = key
        self._address = address
        self._identity = identity
        self._listener = listener
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._socket: zmq.Socket[bytes] | None = None
        self._monitor: zmq.Socket[bytes] | None = None

    def open(self) -> None:
        """Starts connecting. Raises StartupError when the address is invalid."""
        loop = asyncio.get_running_loop()
        self._context = zmq.Context()
        try:
            self._socket = connect_dealer(
                self._context, self._address, self._identity, self._key, immediate=True
            )
        except StartupError:
            self.close()
            raise
        events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
        self._monitor = self._socket.get_monitor_socket(events)
        loop.add_reader(self._monitor.fileno(), self._read_monitor)
        loop.add_reader(self._socket.fileno(), self._read)
        self._read_monitor()  # events may have arrived before there was a reader

    def send(self, frame: bytes) -> bool:
        assert self._socket is not None
        try:
            self._socket.send(frame, zmq.NOBLOCK)
        except zmq.Again:
            return False
        if is_readable(self._socket):
            asyncio.get_running_loop().call_soon(self._read)
        return True

    def close(self) -> None:
        """Flushes the last messages and closes. Idempotent."""
        if self._socket is not None and self._monitor is not None:
            loop = asyncio.get_running_loop()
            loop.remove_reader(self._socket.fileno())
            loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close(linger=_LINGER_MS)
            self._socket = self._monitor = None
        if self._context is not None:
            self._context.term()
            self._context = None

    def _read(self) -> None:
        for _ in range(_FRAMES_PER_TURN):
            if self._socket is None:
                return
            try:
                frame = receive(self._socket)
            except zmq.Again:
                return
            self._listener.on_frame(frame)
            if self._socket is None or not is_readable(
                self._socket
            ):  # receiving without a message would raise
                return
        asyncio.get_running_loop().call_soon(self._read)

    def _read_monitor(self) -> None:
        while self._socket is not None and self._monitor is not None and is_readable(self._monitor):
            event = parse_monitor_message(self._monitor.recv_multipart())["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                is_readable(self._socket)  # lets the socket process its new connection
                self._listener.on_connected()
            elif event == zmq.EVENT_DISCONNECTED:
                self._read()
                self._listener.on_disconnected()
