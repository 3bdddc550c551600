"""Keys for TCP between our processes."""

import dataclasses
import os
import stat
from pathlib import Path

import pytest
import zmq

from pagewire import cli
from pagewire.errors import StartupError
from pagewire.ipc.curve import (
    ClientKey,
    CurveAuthenticator,
    EngineKey,
    make_keys,
    read_client_key,
    read_engine_key,
)
from pagewire.ipc.transport import bind_router, connect_dealer, new_identity, remove_file
from tests.patience import PATIENCE_S

PATIENCE_MS = int(1000 * PATIENCE_S)
FAILED = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
FAILED |= zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_DISCONNECTED


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    engine, client = make_keys(tmp_path / "keys")
    return str(engine), str(client)


@pytest.fixture
def context():
    with zmq.Context() as context:
        yield context


@pytest.fixture
def router(files, context):
    """An engine core's socket on TCP, and where it listens."""
    key = read_engine_key(files[0])
    authenticator = CurveAuthenticator(context, key)
    socket = bind_router(context, "tcp://127.0.0.1:*", key)
    yield socket, socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()
    socket.close()
    authenticator.close()


def test_a_peer_with_the_keys_can_talk(files, context, router):
    socket, address = router
    with connect_dealer(context, address, b"x" * 16, read_client_key(files[1])) as client:
        client.send(b"hello")
        assert socket.poll(PATIENCE_MS)
        assert socket.recv_multipart() == [b"x" * 16, b"hello"]
        socket.send_multipart([b"x" * 16, b"welcome"])
        assert client.poll(PATIENCE_MS)
        assert client.recv() == b"welcome"


def test_an_engine_core_with_the_same_file_can_talk(files, context, router):
    """To read blocks."""
    socket, address = router
    with connect_dealer(context, address, b"x" * 16, read_engine_key(files[0]).as_client()) as other:
        other.send(b"hello")
        assert socket.poll(PATIENCE_MS)


def strangers(client: ClientKey) -> dict[str, ClientKey | None]:
    public, secret = zmq.curve_keypair()
    other_engine, _ = zmq.curve_keypair()
    return {
        "nothing": None,
        "keys of its own": dataclasses.replace(client, public=public, secret=secret),
        "another engine's key": dataclasses.replace(client, engine=other_engine),
    }


@pytest.mark.parametrize("kind", ["nothing", "keys of its own", "another engine's key"])
def test_a_peer_without_them_does_not_get_so_far_as_to_send(files, context, router, kind):
    socket, address = router
    key = strangers(read_client_key(files[1]))[kind]
    stranger = context.socket(zmq.DEALER)
    stranger.setsockopt(zmq.LINGER, 0)
    stranger.setsockopt(zmq.IMMEDIATE, 1)
    if key is not None:
        key.protect(stranger)
    with stranger, stranger.get_monitor_socket(FAILED) as monitor:
        stranger.connect(address)
        assert monitor.poll(PATIENCE_MS), "the handshake fails"
        with pytest.raises(zmq.Again):
            stranger.send(b"hello", zmq.NOBLOCK)
        stranger.disable_monitor()
    with connect_dealer(context, address, new_identity(), read_client_key(files[1])) as client:
        client.send(b"known")
        assert socket.poll(PATIENCE_MS)
        assert socket.recv_multipart()[1:] == [b"known"], "and others are not disturbed"


def test_tcp_needs_keys(context):
    with pytest.raises(StartupError, match="needs keys"):
        bind_router(context, "tcp://127.0.0.1:*")
    with pytest.raises(StartupError, match="needs keys"):
        connect_dealer(context, "tcp://127.0.0.1:1", new_identity())


def test_an_address_that_cannot_be_bound(files, context, router):
    _, address = router
    key = read_engine_key(files[0])
    with pytest.raises(StartupError, match="cannot open the engine's socket: .*in use"):
        bind_router(context, address, key)
    with pytest.raises(StartupError, match="cannot open the engine's socket"):
        bind_router(context, "tcp://no such interface:7", key)
    for wrong in (
        "tcp://nowhere",
        "tcp://127.0.0.1:99999",
        "tcp://127.0.0.1:0",
        "tcp://:7",
        "udp://1.1.1.1:7",
    ):
        with pytest.raises(StartupError, match="cannot use this address"):
            bind_router(context, wrong, key)
        with pytest.raises(StartupError, match="cannot use this address"):
            connect_dealer(context, wrong, new_identity(), read_client_key(files[1]))


def test_files_are_for_one_user_and_are_not_overwritten(files):
    for path in map(Path, files):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with pytest.raises(StartupError, match="cannot write the keys"):
        make_keys(Path(files[0]).parent)


def test_keys_of_engine_cores_get_one_more_client(files, tmp_path):
    """The earlier one may still connect."""
    before, first = read_engine_key(files[0]), read_client_key(files[1])
    engine, client = map(str, make_keys(tmp_path / "more", before))
    added = read_client_key(client)
    assert read_engine_key(engine) == EngineKey(before.secret, (first.public, added.public))
    assert added.engine == first.engine == before.public


def test_what_is_wrong_with_a_file_is_said(files, tmp_path):
    engine, client = files
    with pytest.raises(StartupError, match="it has no engine: perhaps it is the file of the other side"):
        read_client_key(_without_engine(tmp_path))
    with pytest.raises(StartupError, match="clients is not a list"):
        read_engine_key(client)
    for content, what in (("[1]", "not a file of keys"), (": :", "test.key"), ("secret: abc", "clients")):
        path = tmp_path / "test.key"
        path.touch(0o600)
        path.write_text(content)
        with pytest.raises(StartupError, match=what):
            read_engine_key(str(path))
    with pytest.raises(StartupError, match="secret is not a key of 40 characters"):
        read_engine_key(_with_secret(engine, "abc", tmp_path))
    with pytest.raises(StartupError, match=r"none\.key"):
        read_engine_key(str(tmp_path / "none.key"))
    os.mkfifo(tmp_path / "pipe.key", 0o600)
    with pytest.raises(StartupError, match="not a regular file"):
        read_client_key(str(tmp_path / "pipe.key"))
    Path(client).chmod(0o644)
    with pytest.raises(StartupError, match="others may read .*: its mode is 0644"):
        read_client_key(client)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user(tmp_path):
    _, client = map(str, make_keys(tmp_path))
    os.chown(client, 65534, -1)
    with pytest.raises(StartupError, match="others may read .*: it belongs to user 65534"):
        read_client_key(client)


def _without_engine(folder: Path) -> str:
    """A client's file that lacks the engine's public key."""
    public, secret = zmq.curve_keypair()
    return _write(folder / "half.key", f"secret: '{secret.decode()}'\npublic: '{public.decode()}'\n")


def _with_secret(engine: str, secret: str, folder: Path) -> str:
    clients = Path(engine).read_text().partition("secret")[0]
    return _write(folder / "bad.key", f"{clients}secret: {secret}\n")


def _write(path: Path, text: str) -> str:
    path.touch(0o600)
    path.write_text(text)
    return str(path)


def test_the_command(tmp_path, capsys):
    assert cli.run(["keys", str(tmp_path / "new")]) == 0
    printed = capsys.readouterr().out
    assert "engine.key  for engine cores: --curve-key" in printed
    with pytest.raises(StartupError, match="FOLDER is missing"):
        cli.run(["keys"])


def test_a_socket_on_tcp_leaves_no_file(tmp_path):
    remove_file("tcp://127.0.0.1:1")
    (tmp_path / "x.ipc").touch()
    remove_file(f"ipc://{tmp_path}/x.ipc")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_startup_error(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot write the keys.*Not a directory"):
        make_keys(tmp_path / "file" / "keys")
