"""The worker's connection to its engine core."""

import logging
import select
import struct
import time

import zmq
from google.protobuf.message import DecodeError

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.curve import ClientKey
from pagewire.ipc.transport import BadFrame, connect_dealer, is_readable, new_identity, pack, receive, unpack

logger = logging.getLogger(__name__)


_REFUSED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL


class KeysRefused(StartupError):
    """The engine core does not know the key of this process."""


class EngineGone(Exception):
    """The engine core closed the connection, or died."""


class Channel:
    """The connection to the core: sends and receives whole messages."""

    def __init__(
        self, context: "zmq.Context[zmq.Socket[bytes]]", address: str, key: ClientKey | None = None
    ) -> None:
        """key: for tcp. Raises StartupError when the address is invalid."""
        self._context, self._address, self._key = context, address, key
        self._refused_frames = 0
        self._connect()

    def renew(self) -> None:
        """Connects anew, under another identity, to the next core at the address. What the last one has sent,
        or was to get, is dropped."""
        self.close(0)
        self._connect()

    def _connect(self) -> None:
        self._socket = connect_dealer(self._context, self._address, new_identity(), self._key)
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | _REFUSED
        self._monitor = self._socket.get_monitor_socket(events)
        self._descriptors = [int(socket.getsockopt(zmq.FD)) for socket in (self._socket, self._monitor)]

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        """Queues a message."""
        self._socket.send(pack(message))

    def receive(self, seconds: float | None = None) -> worker_pb2.WorkerCommand:
        """Returns the next command; an empty one when none arrives in time (None: no limit), or for a frame
        that is not a command, which is counted. Raises EngineGone; KeysRefused."""
        frame = self._next(seconds)
        if frame is None:
            return worker_pb2.WorkerCommand()
        try:
            return worker_pb2.WorkerCommand.FromString(unpack(frame))
        except (BadFrame, DecodeError) as error:
            self._refused_frames += 1
            if self._refused_frames.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                logger.warning("refused a frame of the core (%d so far): %s", self._refused_frames, error)
            return worker_pb2.WorkerCommand()

    def has_command(self) -> bool:
        """Returns whether a command has arrived, or the connection has ended."""
        return is_readable(self._socket) or is_readable(self._monitor)

    def is_lost(self) -> bool:
        """Returns whether the connection has ended."""
        return is_readable(self._monitor)

    def _next(self, seconds: float | None) -> bytes | None:
        """Returns the next frame; None: none arrived in time. Raises EngineGone.

        In most steps the next plan has already arrived, and nothing else is checked. zmq_poll() waits in
        milliseconds, longer than many simulated steps, so select() waits on the sockets' descriptors. These
        are edge-triggered: they signal changes after the last read.
        """
        end = None if seconds is None else time.monotonic() + seconds
        while True:
            frame = self._take()
            if frame is not None:
                return frame
            if is_readable(self._monitor):
                if is_readable(self._socket):  # sent before the end, and arrived since it was looked at
                    continue
                raise self._end()
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                return None
            select.select(self._descriptors, [], [], left)

    def _end(self) -> Exception:
        """Returns the reason for which the connection has ended."""
        (event,) = struct.unpack_from("=H", self._monitor.recv_multipart()[0])
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and self._key is not None:
            logger.warning("%s ended the handshake: is --curve-key of another engine core?", self._address)
        if not event & _REFUSED:
            return EngineGone()
        return KeysRefused(
            "cannot talk to the engine core",
            f"{self._address}: it refuses the key of --curve-key",
            "give each side its file of one call of pagewire keys",
        )

    def _take(self) -> bytes | None:
        try:
            return receive(self._socket)
        except zmq.Again:
            return None

    def close(self, linger_ms: int) -> None:
        """Closes the connection. linger_ms: time that the last message has to be sent."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=linger_ms)
