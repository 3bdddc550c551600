"""A group whose other ranks connect from other hosts, here threads of this process with keys."""

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.io import remote_ranks
from engine_core.io.process_control import StopSignal
from engine_core.io.remote_ranks import MissingRanks, RemoteRanks
from engine_core.io.worker_group import WorkerGroup
from engine_core.io.worker_process import WorkerDied
from pagewire import __version__
from pagewire.internal.v1.worker_pb2 import (
    Failed,
    Initialize,
    Ready,
    WorkerCommand,
    WorkerHello,
    WorkerMessage,
)
from pagewire.ipc import transport
from pagewire.ipc.curve import CurveAuthenticator, make_keys, read_client_key, read_engine_key
from tests.engine_core.processes import spawn_fake_worker
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S

Context = zmq.Context[zmq.Socket[bytes]]
INITIALIZE = Initialize(block_size=4, num_blocks=16)


class Host:
    """Another host, with one rank."""

    def __init__(self, context: Context, address: str, keys: Path, rank: int = 1, **hello: object) -> None:
        key = read_client_key(str(keys / "client.key"))
        self.socket = transport.connect_dealer(context, address, transport.new_identity(), key)
        facts = {"rank": rank, "pid": 1, "version": __version__, "host": "b", "group_size": 2} | hello
        self.send(hello=WorkerHello(**facts))  # type: ignore[arg-type]

    def send(self, **message: object) -> None:
        self.socket.send(transport.pack(WorkerMessage(**message)))  # type: ignore[arg-type]

    def receive(self) -> WorkerCommand:
        assert self.socket.poll(int(1000 * PATIENCE_S))
        return WorkerCommand.FromString(transport.unpack(self.socket.recv()))


class Group:
    """A group of two ranks: a fake worker on this host, and one that is still to come."""

    def __init__(self, context: Context, folder: Path, stop: StopSignal) -> None:
        make_keys(folder / "keys")
        key = read_engine_key(str(folder / "keys" / "engine.key"))
        self.authenticator = CurveAuthenticator(context, key)
        self.context, self.keys = context, folder / "keys"
        self.address = f"tcp://127.0.0.1:{free_ports(1)[0]}"
        self.workers = WorkerGroup(
            context,
            transport.workers_address(folder),
            stop,
            spawn_fake_worker,
            hang_timeout=PATIENCE_S,
            key=key,
        )
        self.workers.start([[]], external=False, remote=RemoteRanks(self.address, 1, 1))

    def host(self, **hello: object) -> Host:
        return Host(self.context, self.address, self.keys, **hello)  # type: ignore[arg-type]


@pytest.fixture
def group(context: Context, folder: Path) -> Iterator[Group]:
    with StopSignal() as stop, contextlib.ExitStack() as stack:
        made = Group(context, folder, stop)
        stack.callback(made.authenticator.close)
        stack.callback(made.workers.close)
        yield made


def test_ranks_of_two_hosts_are_one_group(group: Group) -> None:
    """One by a socket of this host, one by TCP with keys."""
    host = group.host()
    group.workers.initialize(INITIALIZE)
    assert host.receive().initialize.num_blocks == 16
    host.send(ready=Ready(model={"architecture": "fake"}, num_blocks=9))
    with pytest.raises(WorkerDied, match="the ranks of the worker disagree"):
        group.workers.wait_ready(lambda what, fraction: None)
    assert len(group.workers.pids) == 1
    host.socket.close()


def test_the_loss_of_a_host_is_named(group: Group) -> None:
    host = group.host()
    group.workers.initialize(INITIALIZE)
    host.socket.close()
    with pytest.raises(WorkerDied) as death:
        group.workers.wait_ready(lambda what, fraction: None)
    assert death.value.what == "rank 1 of the worker (on b) is gone"
    assert death.value.why == "its connection is lost"
    assert death.value.may_pass, "the next start awaits it"


def test_what_a_rank_elsewhere_reports_has_its_name(group: Group) -> None:
    host = group.host()
    group.workers.initialize(INITIALIZE)
    host.send(
        failed=Failed(type="StartupError", what="cannot load", why="there is no /models/x", may_pass=True)
    )
    with pytest.raises(WorkerDied) as death:
        group.workers.wait_ready(lambda what, fraction: None)
    assert death.value.may_pass
    assert str(death.value) == "cannot load: rank 1 of the worker (on b): there is no /models/x"
    host.socket.close()


@pytest.mark.parametrize(
    ("hello", "name", "why"),
    [
        (
            {"version": "0.1"},
            "rank 1 of the worker (on b)",
            f"it is of pagewire 0.1, and the engine core of {__version__}",
        ),
        (
            {"group_size": 4},
            "rank 1 of the worker (on b)",
            "it is one of 4 ranks, and the engine core has 2",
        ),
        (
            {"rank": 3, "group_size": 4},
            "rank 3 on b",
            "it is one of 4 ranks, and the engine core has 2",
        ),
    ],
)
def test_a_rank_that_does_not_fit_ends_the_start(
    group: Group, hello: dict[str, object], name: str, why: str
) -> None:
    host = group.host(**hello)
    with pytest.raises(WorkerDied) as death:
        group.workers.initialize(INITIALIZE)
    assert (death.value.what, death.value.why) == (f"cannot use {name}", why)
    host.socket.close()


def test_ranks_that_have_not_come_are_named(
    group: Group, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger=remote_ranks.__name__)
    ranks = group.workers._ranks
    missing = MissingRanks(ranks, RemoteRanks("tcp://h:1", 1, 1))
    assert missing.describe() == "rank 0 of --node-rank 0; rank 1 of --node-rank 1"
    missing.report()
    assert not caplog.records, "not at once"
    monkeypatch.setattr(remote_ranks, "REPORT_S", 0.0)
    missing._next = 0.0
    missing.report()
    assert caplog.messages == [f"waiting at tcp://h:1 for {missing.describe()}"]
    ranks[0].peer = ranks[1].peer = b"x"
    missing.report()
    assert missing.describe() == "" and len(caplog.records) == 1
    ranks[0].peer = ranks[1].peer = None


def test_several_ranks_of_a_host_are_one_part_of_the_line() -> None:
    ranks = [remote_ranks.Rank(number, 6, None, 0.0) for number in range(6)]
    ranks[0].peer = ranks[1].peer = ranks[2].peer = b"x"
    missing = MissingRanks(ranks, RemoteRanks("tcp://h:1", 4, 2))
    assert missing.describe() == "rank 3 of --node-rank 1; ranks 4, 5 of --node-rank 2"
