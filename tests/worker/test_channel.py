"""A worker's connection at the end of its core."""

import contextlib
import select
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from pagewire.errors import StartupError
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.curve import (
    ClientKey,
    CurveAuthenticator,
    EngineKey,
    make_keys,
    read_client_key,
    read_engine_key,
)
from pagewire.ipc.transport import bind_router, is_readable, pack, receive, workers_address
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S
from worker.channel import Channel, EngineGone, KeysRefused


@pytest.fixture
def ends() -> Iterator[tuple[Channel, "zmq.Socket[bytes]", list[bytes]]]:
    """A worker's end of a connection, the core's, and how the core names the worker."""
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as folder, zmq.Context() as context:
        address = workers_address(Path(folder))
        core, channel = bind_router(context, address), Channel(context, address)
        channel.send(worker_pb2.WorkerMessage())
        core.poll()
        yield channel, core, core.recv_multipart()[:1]
        core.close(0)
        channel.close(0)


def test_what_was_sent_before_the_end_is_received(
    ends: tuple[Channel, "zmq.Socket[bytes]", list[bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where message and end arrive between one look at the socket and the next: both descriptors have
    signalled then, and would never do so again."""
    channel, core, name = ends

    def wait(*_: object) -> None:
        raise AssertionError("it would wait for ever")

    core.send_multipart([*name, pack(worker_pb2.WorkerCommand(shutdown=worker_pb2.Shutdown()))])
    looks = 0

    def take() -> bytes | None:
        nonlocal looks
        looks += 1
        if looks == 1:
            core.close()
            while not (is_readable(channel._monitor) and is_readable(channel._socket)):
                pass
            return None
        try:
            return receive(channel._socket)
        except zmq.Again:
            return None

    monkeypatch.setattr(channel, "_take", take)
    monkeypatch.setattr(select, "select", wait)
    assert channel.receive().HasField("shutdown")
    with pytest.raises(EngineGone):
        channel.receive()


@pytest.fixture
def keys(tmp_path: Path) -> tuple[EngineKey, ClientKey, ClientKey]:
    """The core's, that of its clients, and one of the clients of another core."""
    files = [make_keys(tmp_path / name) for name in ("ours", "others")]
    ours, others = (read_client_key(str(client)) for _, client in files)
    return read_engine_key(str(files[0][0])), ours, others


def end_of(engine: EngineKey, key: ClientKey) -> Exception:
    """How a connection with such keys ends."""
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with zmq.Context() as context, contextlib.ExitStack() as stack:
        stack.callback(CurveAuthenticator(context, engine).close)
        stack.callback(bind_router(context, address, engine).close, 0)
        channel = Channel(context, address, key)
        stack.callback(channel.close, 0)
        with pytest.raises((EngineGone, StartupError)) as raised:
            channel.receive(PATIENCE_S)
        return raised.value


def test_a_key_that_the_core_does_not_know(keys: tuple[EngineKey, ClientKey, ClientKey]) -> None:
    engine, ours, others = keys
    end = end_of(engine, replace(others, engine=ours.engine))
    assert isinstance(end, KeysRefused) and "it refuses the key of --curve-key" in end.why


def test_the_key_of_another_core(
    keys: tuple[EngineKey, ClientKey, ClientKey], caplog: pytest.LogCaptureFixture
) -> None:
    """Which looks as a core that ends in the handshake."""
    engine, _, others = keys
    assert isinstance(end_of(engine, others), EngineGone)
    assert "ended the handshake: is --curve-key of another engine core?" in caplog.messages[0]
