"""Worker processes: start, steps, faults, end; groups of one rank and of two."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from engine_core.io import worker_group
from engine_core.io.inbox import HealthProbe, Inbox
from engine_core.io.process_control import Stopped, StopSignal
from engine_core.io.worker_group import WorkerGroup
from engine_core.io.worker_process import WorkerDied
from engine_core.scheduler.scheduler import Scheduler
from pagewire.internal.v1.worker_pb2 import Initialize, Ready, WorkerHello, WorkerMessage
from pagewire.ipc import transport
from tests.engine_core.fakes import Ledger, add_request, expected_output, make, run
from tests.engine_core.processes import python, spawn_fake_worker
from tests.patience import PATIENCE_S

Context = zmq.Context[zmq.Socket[bytes]]
INITIALIZE = Initialize(block_size=4, num_blocks=16)


@pytest.fixture
def stop() -> Iterator[StopSignal]:
    with StopSignal() as made:
        yield made


@pytest.fixture
def link(context: Context, folder: Path, stop: StopSignal) -> Iterator[WorkerGroup]:
    made = WorkerGroup(context, transport.workers_address(folder), stop, spawn_fake_worker)
    yield made
    made.close()


def start(link: WorkerGroup) -> Ready:
    link.start([[]], external=False)
    link.initialize(INITIALIZE)
    return link.wait_ready(lambda what, fraction: None)


def pid_of(link: WorkerGroup) -> int:
    assert link._ranks[0].child is not None
    return link._ranks[0].child.pid


def one_step(link: WorkerGroup) -> None:
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    scheduler.add(make(add_request(1)))
    link.submit(scheduler.schedule(0.0))
    link.collect()


def test_a_worker_from_start_to_end(
    context: Context, folder: Path, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_group, "SHUTDOWN_GRACE_S", 60.0)  # a busy machine is no reason to kill it
    link = WorkerGroup(context, transport.workers_address(folder), stop, spawn_fake_worker)
    progress: list[tuple[str, float]] = []
    link.start([[]], external=False)
    link.initialize(INITIALIZE)
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
    child = link._ranks[0].child
    assert child is not None
    link.close()
    assert child._process.returncode == 0, "it left by itself"


def test_grammars_are_compiled_beside_steps(link: WorkerGroup) -> None:
    """The answer is no result, and ends a wait for nothing."""
    start(link)
    assert link.take_compiled() == []
    link.compile_grammar(5, "start: /a/")
    link.await_result(60.0)
    assert link.take_compiled() == [5] and link.take_compiled() == []
    link.compile_grammar(6, "start: /b/")
    one_step(link)
    link.await_result(60.0)
    assert link.take_compiled() == [6]


@pytest.mark.parametrize(
    ("fault", "what", "why"),
    [
        ("refuse", "cannot start", "no torch"),
        ("fail-load", "cannot load", "a tensor is missing"),
        ("die-load", "the worker", "killed by SIGKILL"),
        ("other-version", "cannot use the worker (pid ", "it is of pagewire 1.0.0, and the engine core of "),
    ],
)
def test_a_worker_that_does_not_start(
    link: WorkerGroup, monkeypatch: pytest.MonkeyPatch, fault: str, what: str, why: str
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
    link: WorkerGroup, monkeypatch: pytest.MonkeyPatch, fault: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", fault)
    start(link)
    with pytest.raises(WorkerDied, match=why):
        one_step(link)


def test_two_plans_under_way_are_answered_in_order(link: WorkerGroup) -> None:
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
    link: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "die-step")
    start(link)
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    scheduler.add(make(add_request(1)))
    with pytest.raises(WorkerDied, match="SIGKILL"):
        for _ in range(2):
            link.submit(scheduler.schedule(0.0))
        link.await_result(60.0)


def test_a_grammar_for_a_worker_that_is_gone(link: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request that brought it does not fail; the next wait tells of the death."""
    start(link)
    os.kill(pid_of(link), signal.SIGKILL)

    def send_to(*_: object) -> None:
        raise zmq.ZMQError(zmq.EHOSTUNREACH)

    monkeypatch.setattr(transport, "send_to", send_to)
    link.compile_grammar(1, "start: /a/")
    with pytest.raises(WorkerDied, match="SIGKILL"):
        link.await_result(60.0)


def test_the_wait_for_a_result_is_bounded(link: WorkerGroup) -> None:
    start(link)
    link.await_result(0.001)


@pytest.mark.parametrize("with_event", [True, False])
def test_a_burst_lasts_until_its_result_or_an_event(
    link: WorkerGroup, with_event: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event ends it: the worker answers, which would otherwise wait."""
    monkeypatch.setenv("FAKE_WORKER", "burst" if with_event else "")
    start(link)
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=2, max_num_batched_tokens=32)
    scheduler.add(make(add_request(1)))
    with contextlib.closing(Inbox()) as inbox:
        inbox.put(HealthProbe(lambda answers: None))
        inbox.take()
        link.submit(scheduler.schedule(0.0))
        if with_event:
            inbox.put(HealthProbe(lambda answers: None))
        link.await_burst(inbox)
        assert link._socket.has_news != with_event and bool(inbox) == with_event
    assert len(link.collect().token_ids) == 1


def test_a_worker_that_was_killed_between_two_steps(link: WorkerGroup) -> None:
    start(link)
    os.kill(pid_of(link), signal.SIGKILL)
    with pytest.raises(WorkerDied, match="SIGKILL"):
        one_step(link)


def test_a_signal_ends_the_wait_for_a_worker_that_hangs(
    link: WorkerGroup, stop: StopSignal, monkeypatch: pytest.MonkeyPatch
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
    link = WorkerGroup(context, transport.workers_address(folder), stop, spawn_fake_worker)
    stop.request()
    with pytest.raises(Stopped):
        link.start([[]], external=False)
        link.initialize(INITIALIZE)
    child = link._ranks[0].child
    assert child is not None
    link.close()
    assert child._process.returncode == -signal.SIGKILL


@pytest.fixture
def watchful(context: Context, folder: Path, stop: StopSignal) -> Iterator[WorkerGroup]:
    """A group with a hang detector."""
    address = transport.workers_address(folder)
    made = WorkerGroup(context, address, stop, spawn_fake_worker, hang_timeout=1.0)
    yield made
    made.close()


def test_a_step_that_never_ends(watchful: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_WORKER", "hang-step")
    start(watchful)
    beats: list[int] = []
    watchful.on_wait = lambda: beats.append(1)
    with pytest.raises(WorkerDied, match=r"hangs: a step has taken \d\.\d s.*; it was killed"):
        one_step(watchful)
    assert len(beats) >= 4, "on_wait is called while the core waits"
    child = watchful._ranks[0].child
    assert child is not None and child._process.wait(PATIENCE_S) == -signal.SIGKILL


def test_an_idle_worker_that_is_stopped(watchful: WorkerGroup) -> None:
    start(watchful)
    os.kill(pid_of(watchful), signal.SIGSTOP)
    with contextlib.closing(Inbox()) as inbox, pytest.raises(WorkerDied, match="hangs: it was stopped"):
        watchful.wait_for(inbox)


def test_an_external_worker_that_hangs(watchful: WorkerGroup) -> None:
    """The core may not kill it, and ignores what it sends later."""
    address = f"--engine={watchful._socket.address}"
    worker = python("tests.engine_core.fake_worker_process", address, env={"FAKE_WORKER": "hang-step"})
    try:
        watchful.start([[]], external=True)
        watchful.initialize(INITIALIZE)
        watchful.wait_ready(lambda what, fraction: None)
        with pytest.raises(WorkerDied, match="the worker hangs: a step has taken"):
            one_step(watchful)
    finally:
        worker.kill()
        worker.wait()


def test_a_stranger_on_the_workers_socket_is_ignored(link: WorkerGroup, context: Context) -> None:
    """Only the process that the core has started is its worker."""
    with transport.connect_dealer(context, link._socket.address, transport.new_identity()) as stranger:
        stranger.send(transport.pack(WorkerMessage(hello=WorkerHello(pid=1))))
        stranger.send(b"garbage")
        stranger.send_multipart([b"\1", b"", b"x"])
        assert start(link).num_blocks == 16
        one_step(link)
        assert link.num_bad_frames == 3


def test_an_external_worker(link: WorkerGroup) -> None:
    worker = python("tests.engine_core.fake_worker_process", f"--engine={link._socket.address}")
    try:
        link.start([[]], external=True)
        link.initialize(INITIALIZE)
        assert link.wait_ready(lambda what, fraction: None).num_blocks == 16
        for _ in range(20):  # a process probes the address and disconnects
            assert transport._is_served(link._socket.address)
        one_step(link)
    finally:
        worker.kill()
        worker.wait()
    with pytest.raises(WorkerDied, match="connection is lost|cannot be reached"):
        one_step(link)


def test_an_external_worker_that_dies_in_a_step(link: WorkerGroup) -> None:
    address = f"--engine={link._socket.address}"
    worker = python("tests.engine_core.fake_worker_process", address, env={"FAKE_WORKER": "die-step"})
    link.start([[]], external=True)
    link.initialize(INITIALIZE)
    link.wait_ready(lambda what, fraction: None)
    with pytest.raises(WorkerDied, match="connection is lost"):
        one_step(link)
    worker.wait()


def start_two(link: WorkerGroup) -> Ready:
    link.start([[], []], external=False)
    link.initialize(INITIALIZE)
    return link.wait_ready(lambda what, fraction: None)


def test_a_group_of_two_ranks(context: Context, folder: Path, stop: StopSignal) -> None:
    """Both execute every plan; the result is that of rank 0."""
    link = WorkerGroup(context, transport.workers_address(folder), stop, spawn_fake_worker)
    assert start_two(link).num_blocks == 16
    scheduler = Scheduler(num_blocks=16, block_size=4, max_num_seqs=4, max_num_batched_tokens=16)
    messages = [add_request(handle, prompt=9, n=2, max_tokens=9) for handle in (1, 2)]
    for message in messages:
        scheduler.add(make(message))
    ledger = Ledger()
    run(scheduler, link, ledger)
    for message in messages:
        for index in (0, 1):
            key = message.handle, index
            assert (ledger.tokens[key], ledger.ends[key]) == expected_output(message, index)
    children = [rank.child for rank in link._ranks]
    assert len(set(link.pids)) == 2
    link.close()
    assert all(child is not None and child._process.returncode is not None for child in children)


def test_a_group_has_the_blocks_that_all_ranks_have(
    link: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_WORKER", "few-blocks@1")
    assert start_two(link).num_blocks == 8


@pytest.mark.parametrize(
    ("fault", "what", "why"),
    [
        ("refuse@1", "cannot start", "no torch"),
        (
            "fail-load@1",
            "cannot load",
            r"^cannot load: rank 1 of the worker \(pid \d+\): a tensor is missing$",
        ),
        ("die-load@1", "rank 1 of the worker", "killed by SIGKILL"),
        (
            "other-version@1",
            "cannot use rank 1 of the worker (pid ",
            "it is of pagewire 1.0.0, and the engine",
        ),
        ("other-model@1", "disagree", "rank 0 has Fake .* rank 1 has Other"),
    ],
)
def test_a_group_does_not_start_without_each_rank(
    link: WorkerGroup, monkeypatch: pytest.MonkeyPatch, fault: str, what: str, why: str
) -> None:
    monkeypatch.setenv("FAKE_WORKER", fault)
    with pytest.raises(WorkerDied, match=why) as death:
        start_two(link)
    assert what in death.value.what


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("die-step@0", r"rank 0 of the worker \(pid \d+\) is gone: it was killed by SIGKILL"),
        ("die-step@1", r"rank 1 of the worker \(pid \d+\) is gone: it was killed by SIGKILL"),
        ("fail-step@1", "a tensor is missing"),
        ("hang-step@1", r"rank 1 of the worker \(pid \d+\) hangs: a step has taken .*; it was killed"),
        ("wrong-step@1", "cannot talk to rank 1 of the worker: .* its tokens are not those of rank 0"),
    ],
)
def test_the_fault_of_a_rank_is_the_fault_of_the_group(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, fault: str, error: str
) -> None:
    """Only a hang needs a detector: on a busy machine any step may take as long as that allows."""
    group: WorkerGroup = request.getfixturevalue("watchful" if fault.startswith("hang") else "link")
    monkeypatch.setenv("FAKE_WORKER", fault)
    start_two(group)
    with pytest.raises(WorkerDied, match=error):
        one_step(group)


def test_the_rank_that_was_stopped_is_the_one_that_hangs(
    watchful: WorkerGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though the core looks first at the other one, which waits for it and does not answer, either."""
    monkeypatch.setenv("FAKE_WORKER", "hang-step")
    start_two(watchful)
    os.kill(watchful.pids[1], signal.SIGSTOP)
    with pytest.raises(WorkerDied, match=r"rank 1 of the worker \(pid \d+\) hangs"):
        one_step(watchful)


def test_external_ranks_are_identified_by_their_numbers(link: WorkerGroup) -> None:
    address = f"--engine={link._socket.address}"
    module = "tests.engine_core.fake_worker_process"
    processes = [python(module, address, f"--rank={rank}") for rank in (1, 0)]
    try:
        link.start([[], []], external=True)
        link.initialize(INITIALIZE)
        link.wait_ready(lambda what, fraction: None)
        one_step(link)
        assert link.pids == []
    finally:
        for worker in processes:
            worker.kill()
            worker.wait()
