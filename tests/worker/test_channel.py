"""A worker's connection at the end of its core."""

import select
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.curve import CurveAuthenticator, make_keys, read_client_key, read_engine_key
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


@pytest.mark.parametrize("wrong", ["engine", "client"])
def test_keys_that_do_not_match_are_no_end_of_the_core(wrong: str, tmp_path: Path) -> None:
    """The core's of another pair, or one that the core does not know."""
    make_keys(tmp_path / "ours")
    make_keys(tmp_path / "others")
    ours, others = (read_client_key(str(tmp_path / name / "client.key")) for name in ("ours", "others"))
    known, core_of = (ours, others) if wrong == "engine" else (others, ours)
    key = replace(known, engine=core_of.engine)
    engine = read_engine_key(str(tmp_path / "ours" / "engine.key"))
    address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
    with zmq.Context() as context:
        authenticator = CurveAuthenticator(context, engine)
        core, channel = bind_router(context, address, engine), Channel(context, address, key)
        with pytest.raises(KeysRefused, match="the keys of the two sides do not match"):
            channel.receive(PATIENCE_S)
        channel.close(0)
        core.close(0)
        authenticator.close()
