"""What every ZeroMQ socket of ours has in common: framing, limits, addresses.

A message is one frame: PROTOCOL_VERSION as one byte, then one serialized protobuf message. Frames
that do not follow this are counted by the receiver and dropped; they are never fatal.
"""

import os
import secrets
import socket as sockets
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

import zmq

from pagewire.errors import StartupError
from pagewire.ipc.curve import ClientKey, EngineKey

PROTOCOL_VERSION = 1
MAX_MESSAGE_BYTES = 256 << 20
"""Larger frames cut the connection. The largest real one is a prompt of a million tokens (4 MiB)."""
HIGH_WATER_MARK = 10_000
"""Messages queued per peer before sending fails with EAGAIN."""
HEARTBEAT_MS = 1_000
MAX_IPC_PATH = 107
"""Linux: sizeof(sockaddr_un.sun_path) - 1."""


# As plain numbers: operators of enumerations are slow, and this is done in each step.
_AT_ONCE, _MORE_AT_ONCE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)

K = TypeVar("K", EngineKey, ClientKey)


class Serializable(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes: ...


class BadFrame(Exception):
    """A frame with another protocol version or without one."""


def pack(message: Serializable) -> bytes:
    """A frame from a message."""
    return bytes((PROTOCOL_VERSION,)) + message.SerializeToString()


def unpack(frame: bytes) -> bytes:
    """The serialized message of a frame. Raises BadFrame."""
    if not frame:
        raise BadFrame("empty frame")
    if frame[0] != PROTOCOL_VERSION:
        raise BadFrame(f"protocol version {frame[0]}, expected {PROTOCOL_VERSION}")
    return frame[1:]


def send_to(socket: "zmq.Socket[bytes]", peer: bytes, frame: bytes) -> None:
    """Sends a frame to one peer of a ROUTER, without waiting.

    Raises ZMQError, and then nothing was sent: Again when its queue is full, EHOSTUNREACH when it is gone.
    """
    socket.send(peer, _MORE_AT_ONCE)
    socket.send(frame, _AT_ONCE)


def receive(socket: "zmq.Socket[bytes]") -> bytes:
    """The next message; of one to a ROUTER, what follows the identity. Without waiting.

    One of several frames, which nobody of ours sends, is b"". Raises zmq.Again when there is none.
    (recv_multipart() looks an option up by its name, for each frame: 50 us in cold caches.)
    """
    frame = socket.recv(_AT_ONCE, copy=False)
    if not frame.more:
        return frame.bytes
    socket.recv_multipart(_AT_ONCE)
    return b""


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Whether something can be received. It takes note of what ZeroMQ's descriptor tells: that is silent then
    until there is something new."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


def new_identity() -> bytes:
    """A socket identity: random per process start, so that nobody can guess or inherit it."""
    return secrets.token_bytes(16)


def configure(socket: "zmq.Socket[bytes]") -> None:
    """Sets the options that every socket of ours has. Call before bind or connect."""
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.SNDHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.RCVHWM, HIGH_WATER_MARK)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.IPV6, 0)
    socket.setsockopt(zmq.HEARTBEAT_IVL, HEARTBEAT_MS)
    socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 10 * HEARTBEAT_MS)
    if socket.type == zmq.ROUTER:
        socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        socket.setsockopt(zmq.ROUTER_HANDOVER, 0)


def bind_router(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    key: EngineKey | None = None,
    *,
    max_unsent: int = HIGH_WATER_MARK,
) -> "zmq.Socket[bytes]":
    """A bound ROUTER. Raises StartupError.

    ipc: its folder gets mode 0700. tcp: needs a key, and a curve.Gatekeeper in the context.
    max_unsent: messages that it queues for a peer that does not read.
    """
    if _is_tcp(address):
        key = _need_key(address, key)
    else:
        key = None
        _prepare(address)
    socket = context.socket(zmq.ROUTER)
    configure(socket)
    socket.setsockopt(zmq.SNDHWM, max_unsent)
    if key is not None:
        key.protect(socket)
    _open(socket, socket.bind, address, "cannot open the engine's socket")
    return socket


def _open(
    socket: "zmq.Socket[bytes]", bind_or_connect: Callable[[str], object], address: str, what: str
) -> None:
    """Raises StartupError, and then the socket is closed."""
    try:
        bind_or_connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StartupError(what, f"{address}: {error}") from error


def _prepare(address: str) -> None:
    """The folder of an ipc socket, for this user alone. Raises StartupError."""
    path = _ipc_path(address)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.parent.stat()
    if info.st_uid != os.getuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise StartupError(
            "cannot open the engine's socket",
            f"{path.parent} must belong to this user and have mode 0700",
            "choose another folder, or: chmod 700 " + str(path.parent),
        )
    if path.exists() and _is_served(address):
        raise StartupError(
            "cannot open the engine's socket",
            f"another process already serves {address}",
            "stop it, or choose another address",
        )


def connect_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    identity: bytes,
    key: ClientKey | None = None,
    *,
    immediate: bool = False,
) -> "zmq.Socket[bytes]":
    """A DEALER that connects, and waits for the peer as long as it takes. Raises StartupError.

    key: of a client; tcp needs one.
    immediate: sending fails with EAGAIN while there is no connection, and what was sent over a lost
    one is not sent again to the next peer at that address.
    """
    if _is_tcp(address):
        key = _need_key(address, key)
    else:
        key = None
        _ipc_path(address)
    socket = context.socket(zmq.DEALER)
    configure(socket)
    socket.setsockopt(zmq.IMMEDIATE, int(immediate))
    socket.setsockopt(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    socket.setsockopt(zmq.RECONNECT_IVL_MAX, 500)
    if key is not None:
        key.protect(socket)
    _open(socket, socket.connect, address, "cannot use this address")
    return socket


def default_folder() -> Path:
    """Where processes that are started one by one meet: per user, mode 0700."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "pagewire" if base else Path(tempfile.gettempdir()) / f"pagewire-{os.getuid()}"


def frontends_address(folder: Path, rank: int = 0) -> str:
    """Where an engine core listens for frontends. rank: of the core, where a folder has several."""
    return f"ipc://{folder}/frontends{_suffix(rank)}.ipc"


def workers_address(folder: Path, rank: int = 0) -> str:
    """Where an engine core listens for its workers."""
    return f"ipc://{folder}/workers{_suffix(rank)}.ipc"


def _suffix(rank: int) -> str:
    return f"-{rank}" if rank else ""


def remove_file(address: str) -> None:
    """What a bound socket leaves in the file system."""
    if not _is_tcp(address):
        _ipc_path(address).unlink(missing_ok=True)


def _is_tcp(address: str) -> bool:
    """Raises StartupError when it is, and makes no sense: libzmq would take a port modulo 65536."""
    if not address.startswith("tcp://"):
        return False
    host, _, port = address.removeprefix("tcp://").rpartition(":")
    if not host or not (port == "*" or (port.isdecimal() and 0 < int(port) < 65536)):
        raise StartupError("cannot use this address", f"{address!r} is not tcp://host:port")
    return True


def _need_key(address: str, key: K | None) -> K:
    if key is None:
        raise StartupError(
            "cannot use this address",
            f"{address}: TCP between our processes needs keys",
            "make them with: pagewire keys FOLDER; then give each side its file with --curve-key",
        )
    return key


def _ipc_path(address: str) -> Path:
    if not address.startswith("ipc:///"):
        why = f"{address!r} is neither ipc:///folder/name nor tcp://host:port"
        raise StartupError("cannot use this address", why)
    path = address.removeprefix("ipc://")
    if len(path.encode()) > MAX_IPC_PATH:
        raise StartupError("cannot use this address", f"{path} is longer than {MAX_IPC_PATH} bytes")
    return Path(path)


def _is_served(address: str) -> bool:
    """Whether a live process accepts connections there (a killed one leaves a dead file behind)."""
    probe = sockets.socket(sockets.AF_UNIX)
    try:
        probe.connect(address.removeprefix("ipc://"))
    except OSError:
        return False
    finally:
        probe.close()
    return True
