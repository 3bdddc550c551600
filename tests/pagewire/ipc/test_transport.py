"""Sockets between our processes, and peers that do not keep to the rules."""

import errno
import socket as sockets
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import zmq

from pagewire.errors import StartupError
from pagewire.ipc import transport

PATIENCE_MS = 30_000
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
"""Of ZMTP 3.0, without security."""
_READY = b"\x05READY\x0bSocket-Type" + struct.pack(">I", 6) + b"DEALER"

Context = zmq.Context[zmq.Socket[bytes]]
Socket = zmq.Socket[bytes]


@pytest.fixture
def context() -> Iterator[Context]:
    context: Context = zmq.Context()
    yield context
    context.destroy(linger=0)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as name:
        yield Path(name) / "sockets"


@pytest.fixture
def router(context: Context, folder: Path) -> Iterator[Socket]:
    with transport.bind_router(context, transport.frontends_address(folder)) as socket:
        yield socket


@pytest.fixture
def connect(context: Context, folder: Path, router: Socket) -> Iterator[Callable[[bytes], Socket]]:
    """Makes peers of the router with these identities."""
    with ExitStack() as stack:
        address = transport.frontends_address(folder)
        yield lambda identity: stack.enter_context(transport.connect_dealer(context, address, identity))


def receive(socket: Socket) -> list[bytes]:
    assert socket.poll(PATIENCE_MS), "nothing comes"
    return socket.recv_multipart()


def test_frames_have_a_version():
    class Message:
        def SerializeToString(self) -> bytes:
            return b"abc"

    assert transport.unpack(transport.pack(Message())) == b"abc"
    for frame in (b"", b"\x00abc", b"\x02abc"):
        with pytest.raises(transport.BadFrame):
            transport.unpack(frame)


def test_a_message_of_several_frames_is_read_as_an_empty_one(
    router: Socket, connect: Callable[[bytes], Socket]
):
    """Nobody of ours sends one: the receiver counts it, and reads on behind it."""
    dealer = connect(b"peer")
    dealer.send(b"hello")
    assert receive(router) == [b"peer", b"hello"]
    for frames in ([b"one"], [b"one", b"two", b"three"], [b"behind"]):
        router.send_multipart([b"peer", *frames])
    found = []
    while len(found) < 3:
        assert dealer.poll(PATIENCE_MS), "nothing comes"
        found.append(transport.receive(dealer))
    assert found == [b"one", b"", b"behind"]
    with pytest.raises(zmq.Again):
        transport.receive(dealer)


def test_nobody_takes_the_place_of_a_peer(router: Socket, connect: Callable[[bytes], Socket]):
    """With ROUTER_HANDOVER a newcomer with the same identity would receive what is for the first one."""
    first = connect(b"victim")
    first.send(b"here")
    assert receive(router) == [b"victim", b"here"]
    second, third = connect(b"victim"), connect(b"other")
    second.send(b"me too")
    third.send(b"later")
    assert receive(router) == [b"other", b"later"]
    router.send_multipart([b"victim", b"secret"])
    assert receive(first) == [b"secret"]
    assert not second.poll(0)


def test_what_nobody_receives_is_an_error(router: Socket):
    """Without ROUTER_MANDATORY it would be dropped without a word."""
    with pytest.raises(zmq.ZMQError) as failure:
        router.send_multipart([b"nobody", b"x"], zmq.NOBLOCK)
    assert failure.value.errno == errno.EHOSTUNREACH


def test_a_frame_that_is_announced_too_long_ends_the_connection(folder: Path, router: Socket):
    """Otherwise the receiver takes in as much as the peer sends: the message ends with its memory. (A peer
    that does not answer heartbeats is cut off as well, but later; so the option is looked at, too.)"""
    assert router.getsockopt(zmq.MAXMSGSIZE) == transport.MAX_MESSAGE_BYTES
    with sockets.socket(sockets.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_MS / 1000)
        peer.connect(str(folder / "frontends.ipc"))
        peer.sendall(_GREETING)
        peer.sendall(bytes((4, len(_READY))) + _READY)
        peer.sendall(b"\x02" + struct.pack(">Q", transport.MAX_MESSAGE_BYTES + 1))
        while peer.recv(4096):  # what it says of itself, then its end
            pass
    assert not router.poll(0)


def test_identities_cannot_be_guessed():
    assert len({transport.new_identity() for _ in range(100)}) == 100
    assert len(transport.new_identity()) == 16


def test_the_folder_is_private(context: Context, folder: Path, router: Socket):
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    with pytest.raises(StartupError, match="mode 0700"):
        transport.bind_router(context, transport.workers_address(folder))
