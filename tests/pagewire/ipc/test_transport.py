"""Sockets between processes, and peers that break the protocol."""

import errno
import os
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
from tests.patience import PATIENCE_S

PATIENCE_MS = int(1000 * PATIENCE_S)
_GREETING = b"\xff" + bytes(8) + b"\x7f\x03\x00NULL" + bytes(16) + b"\x00" + bytes(31)
"""Greeting of ZMTP 3.0, without security."""
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
    """Returns a function that connects a peer with an identity."""
    with ExitStack() as stack:
        address = transport.frontends_address(folder)
        yield lambda identity: stack.enter_context(transport.connect_dealer(context, address, identity))


def receive(socket: Socket) -> list[bytes]:
    assert socket.poll(PATIENCE_MS), "nothing arrives"
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
    """Our processes send none: the receiver counts it and continues with the next message."""
    dealer = connect(b"peer")
    dealer.send(b"hello")
    assert receive(router) == [b"peer", b"hello"]
    for frames in ([b"one"], [b"one", b"two", b"three"], [b"behind"]):
        router.send_multipart([b"peer", *frames])
    found = []
    while len(found) < 3:
        assert dealer.poll(PATIENCE_MS), "nothing arrives"
        found.append(transport.receive(dealer))
    assert found == [b"one", b"", b"behind"]
    with pytest.raises(zmq.Again):
        transport.receive(dealer)


def test_an_identity_in_use_cannot_be_taken_over(router: Socket, connect: Callable[[bytes], Socket]):
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


def test_sending_to_an_unknown_peer_is_an_error(router: Socket):
    """Without ROUTER_MANDATORY the message would be dropped silently."""
    with pytest.raises(zmq.ZMQError) as failure:
        router.send_multipart([b"unknown", b"x"], zmq.NOBLOCK)
    assert failure.value.errno == errno.EHOSTUNREACH


def test_a_frame_that_announces_too_many_bytes_ends_the_connection(folder: Path, router: Socket):
    """Otherwise the receiver reads until its memory is used up. (A peer that does not answer heartbeats is
    disconnected too, but later; so the test also checks the option.)"""
    assert router.getsockopt(zmq.MAXMSGSIZE) == transport.MAX_MESSAGE_BYTES
    with sockets.socket(sockets.AF_UNIX) as peer:
        peer.settimeout(PATIENCE_MS / 1000)
        peer.connect(str(folder / "frontends.ipc"))
        peer.sendall(_GREETING)
        peer.sendall(bytes((4, len(_READY))) + _READY)
        peer.sendall(b"\x02" + struct.pack(">Q", transport.MAX_MESSAGE_BYTES + 1))
        while peer.recv(4096):  # its greeting, then the end
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


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_connecting_refuses_a_folder_that_others_may_write_to(context: Context, folder: Path, mode: int):
    """Found with a folder in /tmp that another user had made: root's frontend sent its prompts there."""
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(StartupError, match="must belong to this user or to root"):
        transport.connect_dealer(context, transport.frontends_address(folder), b"x" * 16)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give folders away")
def test_connecting_refuses_the_folder_of_another_user(context: Context, folder: Path):
    folder.mkdir(mode=0o755)
    os.chown(folder, 65534, 65534)
    with pytest.raises(StartupError, match="must belong to this user or to root"):
        transport.connect_dealer(context, transport.frontends_address(folder), b"x" * 16)
    own = folder.with_name("own")
    own.mkdir(mode=0o700)
    link = folder.with_name("link")
    link.symlink_to(own)
    os.chown(link, 65534, 65534, follow_symlinks=False)
    with pytest.raises(StartupError, match="must belong to this user or to root"):
        transport.connect_dealer(context, transport.frontends_address(link), b"x" * 16)


def test_connecting_makes_the_folder_so_that_no_other_user_can(context: Context, folder: Path):
    with transport.connect_dealer(context, transport.frontends_address(folder), b"x" * 16):
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_cannot_be_made_is_a_startup_error(context: Context, tmp_path: Path):
    (tmp_path / "file").touch()
    address = transport.frontends_address(tmp_path / "file" / "folder")
    with pytest.raises(StartupError, match="Not a directory"):
        transport.bind_router(context, address)
    with pytest.raises(StartupError, match="Not a directory"):
        transport.connect_dealer(context, address, b"x" * 16)
