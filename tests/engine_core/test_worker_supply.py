"""Where a core has its worker from: orders of the parent process, and the adoption of a kept worker."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from engine_core.io.process_control import ParentOrders, Stopped, StopSignal
from engine_core.worker_supply import Process, WorkerSupply
from pagewire import __version__
from pagewire.config import EngineConfig
from pagewire.host.spawn import Activation, Heartbeat, KeptWorkers, Status, WorkerStarted
from pagewire.internal.v1.worker_pb2 import (
    Failed,
    Initialize,
    Ready,
    WorkerCommand,
    WorkerHello,
    WorkerMessage,
)
from pagewire.ipc import transport
from tests.patience import PATIENCE_S

Context = zmq.Context[zmq.Socket[bytes]]
INITIALIZE = Initialize(model_path="m", num_blocks=16)


class Parent:
    """The other ends of standard input and of the status pipe."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.input, self.orders = (end.detach() for end in ends)
        self.events, status = os.pipe()
        monkeypatch.setenv("PAGEWIRE_STATUS_FD", str(status))
        self.status = Status()
        self._ends = [self.input, self.orders, self.events, status]

    def order(self, *orders: Activation | WorkerStarted) -> None:
        for order in orders:
            os.write(self.orders, order.line())

    def next_events(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in os.read(self.events, 65536).splitlines()]

    def close(self) -> None:
        for end in self._ends:
            os.close(end)


class Waiting:
    """A worker that has loaded, and looks for its next core: a process that sleeps, a thread that speaks."""

    def __init__(self, context: Context, address: str, answer: WorkerMessage | None) -> None:
        """answer: to Initialize; None: it says nothing at all."""
        self.process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
        self.initialize: Initialize | None = None
        self._socket = transport.connect_dealer(context, address, transport.new_identity())
        self._thread = threading.Thread(target=self._speak, args=(answer,))
        self._thread.start()

    def _speak(self, answer: WorkerMessage | None) -> None:
        if answer is not None:
            hello = WorkerHello(rank=0, pid=self.process.pid, version=__version__)
            self._socket.send(transport.pack(WorkerMessage(hello=hello)))
            self.initialize = WorkerCommand.FromString(transport.unpack(self._socket.recv())).initialize
            self._socket.send(transport.pack(answer))

    def close(self) -> None:
        self._thread.join(PATIENCE_S)
        self._socket.close(linger=0)
        self.process.kill()
        self.process.wait()


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parent]:
    made = Parent(monkeypatch)
    yield made
    made.close()


@pytest.fixture
def supply(context: Context, folder: Path, parent: Parent) -> Iterator[WorkerSupply]:
    config = EngineConfig(
        parent_starts_worker=True,
        listen_workers=transport.workers_address(folder),
        hang_timeout=2 * PATIENCE_S,
        device="simulated",
    )
    with StopSignal() as stop, contextlib.ExitStack() as stack:
        process = Process(stop, Heartbeat(lambda: None), context, None)
        made = WorkerSupply(config, process, parent.status, stack)
        made._orders = ParentOrders(stop, parent.input)
        yield made


def adopt(supply: WorkerSupply, worker: Waiting, address: str) -> Ready | None:
    adopted = supply._adopt(KeptWorkers(address, (worker.process.pid,)), INITIALIZE)
    return adopted and adopted[1]


def test_orders_are_read_one_after_another(parent: Parent) -> None:
    kept = KeptWorkers("ipc:///x", (3, 4))
    with StopSignal() as stop:
        orders = ParentOrders(stop, parent.input)
        parent.order(Activation(True, kept), WorkerStarted(7))
        assert orders.next(Activation) == Activation(True, kept)
        assert orders.next(WorkerStarted) == WorkerStarted(7)
        stop.request()
        with pytest.raises(Stopped):
            orders.next(WorkerStarted)


def test_a_parent_that_closes_the_pipe_ends_the_wait(parent: Parent) -> None:
    with StopSignal() as stop, open("/dev/null") as nothing, pytest.raises(Stopped):
        ParentOrders(stop, nothing.fileno()).next(Activation)


def test_the_parent_starts_the_worker(supply: WorkerSupply, parent: Parent) -> None:
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as child:
        parent.order(Activation(), WorkerStarted(child.pid))
        assert supply.begin() == Activation()
        (event,) = parent.next_events()
        arguments = event["arguments"]
        assert event["event"] == "worker" and isinstance(arguments, list)
        assert arguments[0] == "worker" and "--outlives-core" in arguments
        assert supply._started is not None and supply._started.pids == [child.pid]
        supply._started.dismiss()
        assert parent.next_events() == [{"event": "dismissed", "pid": child.pid}]


def test_a_parent_that_cannot_start_a_worker_says_why(supply: WorkerSupply, parent: Parent) -> None:
    parent.order(Activation(), WorkerStarted(0, "no more processes"))
    with pytest.raises(OSError, match="no more processes"):
        supply.begin()


def test_a_kept_worker_is_adopted(
    supply: WorkerSupply, context: Context, folder: Path, parent: Parent
) -> None:
    """It is told what it has loaded, and goes on as it is."""
    address = transport.workers_address(folder)
    worker = Waiting(context, address, WorkerMessage(ready=Ready(num_blocks=16)))
    parent.order(Activation(True, KeptWorkers(address, (worker.process.pid,))))
    activation = supply.begin()
    workers, ready = supply.load(INITIALIZE, activation.kept)
    assert activation.after_kill and ready.num_blocks == 16 and worker.initialize == INITIALIZE
    assert workers.pids == [worker.process.pid] and worker.process.poll() is None
    worker.close()


def test_ranks_on_several_hosts_are_not_adopted(
    supply: WorkerSupply, parent: Parent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They end with their core, as those of other hosts do."""
    config = replace(supply._config, nnodes=2, tensor_parallel_size=4)
    monkeypatch.setattr(supply, "_config", config)
    monkeypatch.setattr(supply, "_start", lambda: None)
    parent.order(Activation(True, KeptWorkers("ipc:///x", (3, 4))))
    assert supply.begin() == Activation(after_kill=True)
    assert parent.next_events() == [{"event": "dismissed", "pid": 3}, {"event": "dismissed", "pid": 4}]


@pytest.mark.parametrize("says", ["nothing", "that it has loaded another model"])
def test_a_worker_that_cannot_be_adopted_is_ended(
    supply: WorkerSupply, context: Context, folder: Path, parent: Parent, says: str
) -> None:
    address = transport.workers_address(folder)
    answer = None if says == "nothing" else WorkerMessage(failed=Failed(what="cannot be adopted"))
    if says == "nothing":
        supply._config = replace(supply._config, hang_timeout=1.5)
    worker = Waiting(context, address, answer)
    assert adopt(supply, worker, address) is None
    assert worker.process.wait(PATIENCE_S) < 0
    assert parent.next_events() == [{"event": "dismissed", "pid": worker.process.pid}]
    worker.close()


def test_a_worker_that_has_ended_is_not_waited_for(
    supply: WorkerSupply, context: Context, folder: Path, parent: Parent
) -> None:
    address = transport.workers_address(folder)
    worker = Waiting(context, address, None)
    worker.process.kill()
    assert adopt(supply, worker, address) is None
    worker.close()
    assert adopt(supply, worker, address + ".2") is None, "also where its process id is free"


def test_a_core_that_ends_leaves_its_worker_to_the_parent(
    context: Context, folder: Path, parent: Parent
) -> None:
    """Neither Shutdown nor a signal: the next core may want it."""
    config = EngineConfig(parent_starts_worker=True, listen_workers=transport.workers_address(folder))
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as child:
        with StopSignal() as stop, contextlib.ExitStack() as stack:
            process = Process(stop, Heartbeat(lambda: None), context, None)
            supply = WorkerSupply(config, process, parent.status, stack)
            supply._orders = ParentOrders(stop, parent.input)
            parent.order(Activation(), WorkerStarted(child.pid))
            supply.begin()
        assert child.poll() is None
        child.kill()
