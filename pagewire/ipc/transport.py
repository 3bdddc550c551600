"""Framing, limits and addresses of all ZeroMQ sockets.

A message is one frame: PROTOCOL_VERSION as one byte, then one serialized protobuf message. The receiver
counts and drops frames that do not follow this; they are never fatal."""

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
"""Larger frames end the connection. The largest real one is a prompt of a million tokens (4 MiB)."""
HIGH_WATER_MARK = 10_000
"""Messages queued per peer before sending fails with EAGAIN."""
HEARTBEAT_MS = 1_000
MAX_IPC_PATH = 107
"""Linux: sizeof(sockaddr_un.sun_path) - 1."""


# As plain integers: operators of enumerations are slow, and these are used in each step.
_AT_ONCE, _MORE_AT_ONCE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)
_READABLE = int(zmq.POLLIN)

K = TypeVar("K", EngineKey, ClientKey)


class Serializable(Protocol):
    """A protobuf message."""

    def SerializeToString(self) -> bytes: ...


class BadFrame(Exception):
    """A frame with another protocol version or without one."""


def pack(message: Serializable, more: bytes | bytearray = b"") -> bytes:
    """Returns the frame of a message. more: further fields of it, serialized: what parses the frame merges
    them, as protobuf says."""
    return b"".join((bytes((PROTOCOL_VERSION,)), message.SerializeToString(), more))


def unpack(frame: bytes) -> bytes:
    """Returns the serialized message of a frame. Raises BadFrame."""
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
    """Returns the payload of the next message, without waiting. On a ROUTER, receive the identity first.

    A payload of several frames, which our processes do not send, reads as b"". Raises zmq.Again if there is
    no message. (recv_multipart() looks an option up by name for each frame: 50 us in cold caches.)
    """
    frame = socket.recv(_AT_ONCE, copy=False)
    if not frame.more:
        return frame.bytes
    socket.recv_multipart(_AT_ONCE)
    return b""


def receive_from(socket: "zmq.Socket[bytes]") -> tuple[bytes, bytes, int]:
    """Returns the next message of a ROUTER, which there is: the identity of its peer, the payload as
    receive() does, and the descriptor of the connection, which events of the socket name."""
    identity, frame = socket.recv(), socket.recv(_AT_ONCE, copy=False)
    connection = int(frame.get(zmq.SRCFD))
    if not frame.more:
        return identity, frame.bytes, connection
    socket.recv_multipart(_AT_ONCE)
    return identity, b"", connection


def is_readable(socket: "zmq.Socket[bytes]") -> bool:
    """Returns True if a message can be received. Consumes the edge of ZeroMQ's descriptor, which becomes
    readable again only with a new event."""
    return bool(int(socket.getsockopt(zmq.EVENTS)) & _READABLE)


def new_identity() -> bytes:
    """Returns a socket identity: random per process start, so that it cannot be guessed or inherited."""
    return secrets.token_bytes(16)


def configure(socket: "zmq.Socket[bytes]") -> None:
    """Sets the options common to all sockets. To be called before bind or connect."""
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
    """Returns a bound ROUTER. Raises StartupError.

    ipc: the folder must be private (mode 0700), and is made if needed. tcp: needs a key, and a
    curve.CurveAuthenticator in the context. max_unsent: messages to queue for a peer that does not read.
    """
    if is_tcp(address):
        key = _need_key(address, key)
    else:
        key = None
        _prepare_bind(address)
    socket = context.socket(zmq.ROUTER)
    configure(socket)
    socket.setsockopt(zmq.SNDHWM, max_unsent)
    if key is not None:
        key.protect(socket)
    _open(socket, socket.bind, address, "cannot open the engine's socket")
    return socket


def bind_tcp_too(
    socket: "zmq.Socket[bytes]", address: str, key: EngineKey | None, *, silence_s: float
) -> None:
    """Has a bound ROUTER listen at a tcp address, too. silence_s: a connection there ends when either side
    has heard nothing for so long; 0: as elsewhere. Raises StartupError, and then the socket is closed."""
    assert is_tcp(address)
    _need_key(address, key).protect(socket)  # of what is bound from here on
    if silence_s:
        silence_s = min(silence_s, 3600.0)  # ZMTP has 16 bits for it
        socket.setsockopt(zmq.HEARTBEAT_IVL, int(250 * silence_s))
        socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(500 * silence_s))
        socket.setsockopt(zmq.HEARTBEAT_TTL, int(1000 * silence_s))
    _open(socket, socket.bind, address, "cannot open the engine's socket")


def _open(
    socket: "zmq.Socket[bytes]", bind_or_connect: Callable[[str], object], address: str, what: str
) -> None:
    """Binds or connects; closes the socket and raises StartupError if that fails."""
    try:
        bind_or_connect(address)
    except zmq.ZMQError as error:
        socket.close()
        raise StartupError(what, f"{address}: {error}") from error


def _prepare_bind(address: str) -> None:
    """Makes the folder of an ipc socket, or checks that only this user can reach it. Raises StartupError."""
    what = "cannot open the engine's socket"
    path = _ipc_path(address)
    owners, mode = _make_folder(path.parent, what)
    if owners != {os.getuid()} or mode & 0o077:
        raise StartupError(
            what,
            f"{path.parent} must belong to this user and have mode 0700",
            f"choose another folder, or: chmod 700 {path.parent}",
        )
    if path.exists() and _is_served(address):
        raise StartupError(
            what, f"another process already serves {address}", "stop it, or choose another address"
        )


def _prepare_connect(address: str) -> None:
    """Checks that no other user can put a socket at an ipc address. Raises StartupError.

    A folder that does not exist yet is made: otherwise another user could make it, in /tmp for example,
    before the engine core does. Neither can be replaced while this process reconnects."""
    what = "cannot use this address"
    folder = _ipc_path(address).parent
    owners, mode = _make_folder(folder, what)
    if not owners <= {os.getuid(), 0} or mode & 0o022:
        raise StartupError(
            what,
            f"{folder} must belong to this user or to root, and others must not be able to write there",
            "another user could read prompts and forge answers: choose another folder",
        )


def _make_folder(folder: Path, what: str) -> tuple[set[int], int]:
    """Makes a folder with mode 0700 if it does not exist. Returns its owners (of the folder, and of the link
    that leads there, if it is one) and its mode. Raises StartupError."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = folder.stat()
        owners = {info.st_uid, folder.lstat().st_uid}
    except OSError as error:
        why = f"{folder}: {error.strerror or type(error).__name__}"
        raise StartupError(what, why, "choose a folder that this user may write to") from error
    return owners, stat.S_IMODE(info.st_mode)


def connect_dealer(
    context: "zmq.Context[zmq.Socket[bytes]]",
    address: str,
    identity: bytes,
    key: ClientKey | None = None,
    *,
    immediate: bool = False,
) -> "zmq.Socket[bytes]":
    """Returns a DEALER that connects, and reconnects, as soon as there is a peer. Raises StartupError.

    ipc: other users must not be able to write to the folder, which is made if needed. tcp: needs a key.
    immediate: sending fails with EAGAIN while there is no connection, and messages sent over a lost
    connection are not sent again to the next peer at that address."""
    if is_tcp(address):
        key = _need_key(address, key)
    else:
        key = None
        _prepare_connect(address)
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
    """Returns the folder for the sockets of processes that are started one by one: per user, mode 0700."""
    base = os.environ.get("XDG_RUNTIME_DIR")
    return Path(base) / "pagewire" if base else Path(tempfile.gettempdir()) / f"pagewire-{os.getuid()}"


def frontends_address(folder: Path, rank: int = 0) -> str:
    """Returns where an engine core listens for frontends. rank: of the core, if a folder has several."""
    return f"ipc://{folder}/frontends{_suffix(rank)}.ipc"


def workers_address(folder: Path, rank: int = 0) -> str:
    """Returns where an engine core listens for its workers."""
    return f"ipc://{folder}/workers{_suffix(rank)}.ipc"


def own_address(address: str) -> str:
    """Returns an ipc address for this process alone, beside one that another process may be bound to."""
    return f"{address}.{os.getpid()}"


def _suffix(rank: int) -> str:
    return f"-{rank}" if rank else ""


def remove_file(address: str) -> None:
    """Removes the file that a bound ipc socket leaves."""
    if not is_tcp(address):
        _ipc_path(address).unlink(missing_ok=True)


def is_tcp(address: str) -> bool:
    """Raises StartupError for a malformed tcp address: libzmq would take the port modulo 65536."""
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
            f"{address}: TCP between processes needs keys",
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
    """Returns True if a process accepts connections there (a killed one leaves a dead file behind)."""
    probe = sockets.socket(sockets.AF_UNIX)
    try:
        probe.connect(address.removeprefix("ipc://"))
    except OSError:
        return False
    finally:
        probe.close()
    return True
