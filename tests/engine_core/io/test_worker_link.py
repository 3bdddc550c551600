"""The worker as a process: started, talked to, watched, buried."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.io.inbox import Inbox
from engine_core.io.stop_signal import Stopped, StopSignal
from engine_core.io.worker_link import WorkerLink
from engine_core.io.worker_process import WorkerDied
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.worker_pb2 import Initialize, Ready, WorkerHello, WorkerMessage
from pagewire.ipc import transport
from tests.engine_core.fakes import Ledger, add_request, expected_output, make, run
from tests.engine_core.processes import python, spawn_fake_worker

Context = zmq.Context[zmq.Socket[bytes]]
INITIALIZE = Initialize(block_size=4, num_blocks=16)


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    with StopSignal() as made:
        yield made


@pytest.fixture
def link(context: Context, folder: Path, stop: StopSignal) -> Iterator[WorkerLink]:
    made = WorkerLink(context, transport.workers_address(folder), stop, spawn_fake_worker)
    yield made
    made.close()


def start(link: WorkerLink) -> Ready:
    link.start(INITIALIZE, [], external=False)
    return link.wait_ready(lambda what, fraction: None)


def pid_of(link: WorkerLink) -> int:
    assert link._child is not None
    return link._child.pid


def one_step(link: WorkerLink) -> None:
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    scheduler.add(make(add_request(1)))
    link.submit(scheduler.schedule(0.0))
    link.collect()


def test_a_worker_from_start_to_end(context: Context, folder: Path, stop: StopSignal) -> None:
    link = WorkerLink(context, transport.workers_address(folder), stop, spawn_fake_worker)
    progress: list[tuple[str, float]] = []
    link.start(INITIALIZE, [], external=False)
    ready = link.wait_ready(lambda what, fraction: progress.append((what, fraction)))
    assert ready.num_blocks == 16 and progress == [("weights", 0.5)]
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    messages = [add_request(handle, prompt=9, n=2, max_tokens=9) for handle in (1, 2, 3)]
    for message in messages:
        scheduler.add(make(message))
    ledger = Ledger()
    run(scheduler, link, ledger)
    for message in messages:
        for index in (0, 1):
            key = message.handle, index
            assert (ledger.tokens[key], ledger.ends[key]) == expected_output(message, index)
    child = link._child
    assert child is not None
    link.close()
    assert child._process.returncode == 0, "it left by itself"


@pytest.mark.parametrize(
    ("fault", "what", "why"),
    [
        ("refuse", "cannot start", "no torch"),
        ("fail-load", "cannot load", "a tensor is missing"),
        ("die-load", "the worker", "killed by SIGKILL"),
    ],
)
def test_a_worker_that_does_not_start(
    link: WorkerLink, monkeypatch: pytest.MonkeyPatch, fault: str, what: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", fault)
    with pytest.raises(WorkerDied) as death:
        start(link)
    assert what in death.value.what and why in death.value.why and death.value.todo


@pytest.mark.parametrize(
    ("fault", "why"),
    [
        ("fail-step", "a tensor is missing"),
        ("die-step", "killed by SIGKILL"),
        ("wrong-step", "step_result: step 1 with 1 samples was answered by step 1, 2 tokens"),
    ],
)
def test_a_worker_that_fails_while_serving(
    link: WorkerLink, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", fault)
    start(link)
    with pytest.raises(WorkerDied, match=why):
        one_step(link)


def test_two_plans_under_way_are_answered_in_order(link: WorkerLink) -> None:
    start(link)
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    message = add_request(1, max_tokens=2)
    scheduler.add(make(message))
    for _ in range(2):
        link.submit(scheduler.schedule(0.0))
    link.await_result(60.0)
    tokens = []
    for step in (1, 2):
        result = link.collect()
        assert result.step == step
        tokens += result.token_ids
        scheduler.update(result)
    assert tokens == expected_output(message, 0)[0]


def test_a_worker_that_dies_with_two_plans_under_way(
    link: WorkerLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "die-step")
    start(link)
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    scheduler.add(make(add_request(1)))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        for _ in range(2):
            link.submit(scheduler.schedule(0.0))
        link.await_result(60.0)


def test_nobody_waits_longer_than_asked_for_a_result(link: WorkerLink) -> None:
    start(link)
    link.await_result(0.001)


def test_a_worker_that_was_killed_while_nobody_looked(link: WorkerLink) -> None:
    start(link)
    os.kill(pid_of(link), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        one_step(link)


def test_a_signal_ends_the_wait_for_a_worker_that_hangs(
    link: WorkerLink, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang-step")
    start(link)
    stop.request()
    with pytest.raises(Stopped):
        one_step(link)


def test_a_worker_that_hangs_is_killed(
    context: Context, folder: Path, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang-load")
    link = WorkerLink(context, transport.workers_address(folder), stop, spawn_fake_worker)
    stop.request()
    with pytest.raises(Stopped):
        link.start(INITIALIZE, [], external=False)
    child = link._child
    assert child is not None
    link.close()
    assert child._process.returncode == -signal.SIGKILL


@pytest.fixture
def watchful(context: Context, folder: Path, stop: StopSignal) -> Iterator[WorkerLink]:
    """A link that does not wait for ever."""
    address = transport.workers_address(folder)
    made = WorkerLink(context, address, stop, spawn_fake_worker, hang_timeout=1.0)
    yield made
    made.close()


def test_a_step_that_never_ends(watchful: WorkerLink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang-step")
    start(watchful)
    beats: list[int] = []
    watchful.meanwhile = lambda: beats.append(1)
    with pytest.raises(WorkerDied, match=r"hangs: a step has taken \d\.\d s.*; it was killed"):
        one_step(watchful)
    assert len(beats) >= 4, "whoever waits for the worker is alive"
    child = watchful._child
    assert child is not None and child._process.wait(60) == -signal.SIGKILL


def test_an_idle_worker_that_is_stopped(watchful: WorkerLink) -> None:
    start(watchful)
    os.kill(pid_of(watchful), signal.SIGSTOP)
    with contextlib.closing(Inbox()) as inbox, pytest.raises(WorkerDied, match="hangs: it was stopped"):
        watchful.wait_for(inbox)


def test_a_worker_of_somebody_else_that_hangs(watchful: WorkerLink) -> None:
    """We may not kill it. What it says later, nobody hears."""
    address = f"--engine={watchful._address}"
    worker = python("tests.engine_core.fake_worker_process", address, env={"FAKE_WORKER": "hang-step"})
    try:
        watchful.start(INITIALIZE, [], external=True)
        watchful.wait_ready(lambda what, fraction: None)
        with pytest.raises(WorkerDied, match="the worker hangs: a step has taken"):
            one_step(watchful)
    finally:
        worker.kill()
        worker.wait()


def test_a_stranger_on_the_workers_socket_is_ignored(link: WorkerLink, context: Context) -> None:
    """Only the process that we have started is our worker."""
    with transport.connect_dealer(context, link._address, transport.new_identity()) as stranger:
        stranger.send(transport.pack(WorkerMessage(hello=WorkerHello(pid=1))))
        stranger.send(b"garbage")
        stranger.send_multipart([b"\1", b"", b"x"])
        assert start(link).num_blocks == 16
        one_step(link)
        assert link.num_bad_frames == 3


def test_a_worker_that_somebody_else_starts(link: WorkerLink) -> None:
    worker = python("tests.engine_core.fake_worker_process", f"--engine={link._address}")
    try:
        link.start(INITIALIZE, [], external=True)
        assert link.wait_ready(lambda what, fraction: None).num_blocks == 16
        for _ in range(20):  # somebody looks whether the address is served, and goes again
            assert transport._is_served(link._address)
        one_step(link)
    finally:
        worker.kill()
        worker.wait()
    with pytest.raises(WorkerDied, match="connection is lost|cannot be reached"):
        one_step(link)


def test_a_worker_of_somebody_else_that_dies_in_a_step(link: WorkerLink) -> None:
    address = f"--engine={link._address}"
    worker = python("tests.engine_core.fake_worker_process", address, env={"FAKE_WORKER": "die-step"})
    link.start(INITIALIZE, [], external=True)
    link.wait_ready(lambda what, fraction: None)
    with pytest.raises(WorkerDied, match="connection is lost"):
        one_step(link)
    worker.wait()
