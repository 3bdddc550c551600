"""A child of the supervisor: what it reports, how it has ended, and the workers that are started for it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host import standby
from pagewire.host.proc_stat import Vitals
from pagewire.host.spawn import Activation, KeptWorkers, WorkerStarted, read_order
from pagewire.supervisor import child as module
from pagewire.supervisor.child import Child
from pagewire.supervisor.worker_processes import WorkerProcesses
from tests.patience import PATIENCE_S


def test_an_order_that_is_not_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has ended meanwhile; its successor gets another order."""

    def spawn(arguments: Sequence[str], **options: object) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        os.close(writing)
        return subprocess.Popen([sys.executable, "-S", "-c", ""], **options), reading  # type: ignore[call-overload]

    monkeypatch.setattr(process, "spawn", spawn)
    child = Child("engine core", ["engine"])
    child.process.wait(PATIENCE_S)
    child.activate()
    child.close()


FAILED = {"event": "failed", "what": "the model", "why": "is lost", "todo": "look", "may_pass": False}
READY = {"event": "ready", "port": 7}
WORKER = ["worker", "--engine=ipc:///x", "--rank=0"]


class Started:
    """A child that does nothing by itself, whose end of the status pipe the test holds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.arguments: list[Sequence[str]] = []
        self.pipes: list[int] = []
        monkeypatch.setattr(process, "spawn", self._spawn)

    def _spawn(self, arguments: Sequence[str], **options: Any) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        self.arguments.append(arguments)
        self.pipes.append(writing)
        if arguments[0] == "worker":
            return subprocess.Popen(["sleep", "60"], **options), reading
        return subprocess.Popen(["cat"], stdout=subprocess.PIPE, **options), reading

    def report(self, *events: dict[str, Any], process: int = 0) -> None:
        """process: the place of the process among all that were started."""
        os.write(self.pipes[process], b"".join(json.dumps(event).encode() + b"\n" for event in events))


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[Started]:
    made = Started(monkeypatch)
    yield made
    for pipe in made.pipes:
        with contextlib.suppress(OSError):
            os.close(pipe)


@pytest.fixture
def make(started: Started) -> Iterator[Callable[..., Child]]:
    """Starts children, which echo their orders."""
    made: list[Child] = []

    def start() -> Child:
        made.append(Child("engine core", ["engine"]))
        return made[-1]

    yield start
    for child in made:
        child.close()
        if child.process.stdout is not None:
            child.process.stdout.close()


def kill(child: Child, signum: int = signal.SIGKILL) -> None:
    """Returns when it has ended, and was not waited for."""
    os.kill(child.process.pid, signum)
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)


def orders(child: Child, count: int) -> list[Activation | WorkerStarted]:
    """What it was told."""
    assert child.process.stdout is not None
    return [read_order(child.process.stdout.readline()) for _ in range(count)]


def test_events_come_in_lines_however_they_are_cut(make, started: Started) -> None:
    """And the pipe's end is told, behind all of them."""
    child = make()
    assert child.read_status() and child.facts is None and child.loading is None
    text = json.dumps({"event": "loading", "what": "weights", "fraction": 0.5}) + "\n" + json.dumps(READY)
    for part in (text[:9], text[9:60], text[60:], "\n"):
        assert child.facts is None
        os.write(started.pipes[0], part.encode())
        assert child.read_status()
    assert child.loading == ("weights", 0.5) and child.facts == {"port": 7}
    os.close(started.pipes.pop())
    assert not child.read_status()


def test_a_failure_loses_a_process_that_still_runs(make, started: Started) -> None:
    child = make()
    started.report(FAILED)
    child.read_status()
    assert child.is_lost and child.process.poll() is None
    cause = child.cause_of_death()
    assert (cause.what, cause.why, cause.todo, cause.may_pass) == ("the model", "is lost", "look", False)


def test_a_process_is_told_to_serve(make, started: Started) -> None:
    child = make()
    assert list(started.arguments[0]) == ["engine"]
    child.activate(after_kill=True)
    assert orders(child, 1) == [Activation(after_kill=True)]


def test_a_standby_can_fork_while_it_runs(make, started: Started) -> None:
    """Not while it imports or is stopped, and not when it has ended."""
    child = make()
    assert not child.can_fork
    started.report({"event": "standby"})
    child.read_status()
    assert child.can_fork
    os.kill(child.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.process.pid, os.WSTOPPED)
    assert not child.can_fork
    kill(child)
    assert not child.can_fork


def test_a_standby_that_does_not_answer_is_killed(
    make, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(standby, "PATIENCE_S", 0.01)
    child = make()
    with open(os.devnull) as null, pytest.raises(OSError, match="does not fork"):
        child.fork(["engine"], null.fileno())
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    assert child.is_lost


def test_workers_are_started_and_dismissed(make, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process is told their ids; or why there is none."""
    child = make()
    started.report({"event": "worker", "arguments": WORKER})
    child.read_status()
    assert started.arguments[1] == WORKER
    (answer,) = orders(child, 1)
    assert isinstance(answer, WorkerStarted) and answer.pid > 0 and answer.why == ""
    assert child._workers.kept() == KeptWorkers("ipc:///x", (answer.pid,))
    started.report({"event": "dismissed", "pid": answer.pid})
    child.read_status()
    assert child._workers.kept() is None

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(11, "Resource temporarily unavailable")

    monkeypatch.setattr(process, "spawn", refuse)
    started.report({"event": "worker", "arguments": WORKER})
    child.read_status()
    assert orders(child, 1) == [WorkerStarted(0, "Resource temporarily unavailable")]


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("dismissed", [False, True])
def test_what_a_worker_has_reported_is_the_cause_of_a_failed_start(
    serves: bool, dismissed: bool, make, started: Started, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a core that serves it is not: that core says itself what has happened."""
    child = make()
    started.report({"event": "worker", "arguments": WORKER}, *([READY] if serves else []))
    child.read_status()
    (worker,) = orders(child, 1)
    assert isinstance(worker, WorkerStarted)
    own = {"event": "failed", "what": "--dtype", "why": "no such", "todo": "choose another"}
    os.write(started.pipes[1], json.dumps(own).encode() + b"\n")
    if dismissed:
        started.report({"event": "dismissed", "pid": worker.pid})
    started.report(FAILED)
    cause = child.cause_of_death()
    assert cause.what == ("the model" if serves else "--dtype")
    assert ("--dtype: no such" in caplog.text) is (serves and dismissed)


@pytest.mark.parametrize(
    ("signum", "event", "killed"),
    [
        (signal.SIGKILL, READY, True),
        (signal.SIGKILL, {"event": "loading", "what": "weights", "fraction": 0.0}, False),
        (signal.SIGTERM, READY, True),
        (signal.SIGSEGV, READY, False),
        (signal.SIGKILL, FAILED | {"may_pass": True}, False),
    ],
    ids=["ready", "starting", "told to end", "crashed", "failed"],
)
def test_which_process_was_killed(
    signum: int, event: dict[str, Any], killed: bool, make, started: Started
) -> None:
    """One that served, from outside; what dies while it starts may have a reason of its own."""
    child = make()
    started.report(event)
    child.read_status()
    kill(child, signum)
    assert child.is_lost
    cause = child.cause_of_death()
    assert signal.Signals(signum).name in cause.why or event["event"] == "failed"
    assert child.was_killed is killed


@pytest.mark.parametrize("out_of_memory", [False, True])
@pytest.mark.parametrize("event", [READY, {"event": "loading", "what": "weights", "fraction": 0.0}])
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_who_has_killed_a_process(
    signum: int,
    event: dict[str, Any],
    out_of_memory: bool,
    make,
    started: Started,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel counts the processes that it kills for their memory."""
    kills = iter([3, 3 + out_of_memory])
    monkeypatch.setattr("pagewire.supervisor.child.oom_kills", lambda: next(kills))
    child = make()
    started.report(event)
    child.read_status()
    kill(child, signum)
    child.cause_of_death()
    assert child.was_killed_from_outside is (signum != signal.SIGSEGV and not out_of_memory)


@pytest.mark.parametrize("may_pass", [False, True])
def test_a_core_whose_worker_was_killed_counts_as_killed(may_pass: bool, make, started: Started) -> None:
    child = make()
    started.report(READY, FAILED | {"may_pass": may_pass})
    child.cause_of_death()
    assert child.was_killed is may_pass and child.leave_workers() is None


def test_a_process_that_hangs_is_ended(make, started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its stacks are logged before. It was not killed from outside, and leaves no workers."""
    vitals: list[Vitals | None] = []
    monkeypatch.setattr(module, "read_vitals", lambda pid: vitals.append(None))
    dumped: list[tuple[str, int]] = []
    monkeypatch.setattr(module, "log_stacks", lambda name, pid: dumped.append((name, pid)))
    child = make()
    started.report(READY, {"event": "worker", "arguments": WORKER})
    child.read_status()
    child.kill_if_hung(1.0, 2.0)
    assert not dumped and child.process.returncode is None
    started.report({"event": "beat"})
    child.read_status()
    child.kill_if_hung(1.5, 2.0)
    assert not child.is_lost, "it was heard"
    child.kill_if_hung(0.5, 2.0)
    assert dumped == [("engine core", child.process.pid)]
    assert child.is_lost and child.process.returncode == -signal.SIGKILL
    cause = child.cause_of_death()
    assert cause.what == "the engine core hangs" and "for 2.0 s" in cause.why
    assert not child.was_killed and child.leave_workers() is None
    child.kill_if_hung(9.0, 2.0)
    assert len(vitals) == 3, "one that is lost is not looked at"


@pytest.mark.parametrize("serves", [False, True])
def test_workers_are_left_by_a_core_that_served(serves: bool, make, started: Started) -> None:
    """They are another one's then; the next core is told of them."""
    child, successor = make(), make()
    started.report({"event": "worker", "arguments": WORKER}, *([READY] if serves else []))
    child.read_status()
    (worker,) = orders(child, 1)
    assert isinstance(worker, WorkerStarted)
    kill(child)
    child.cause_of_death()
    left = child.leave_workers()
    if not serves:
        assert left is None
        return
    assert left is not None and child.leave_workers() is None
    successor.activate(after_kill=True, kept=left)
    kept = KeptWorkers("ipc:///x", (worker.pid,))
    assert orders(successor, 1) == [Activation(after_kill=True, kept=kept)]
    assert successor._workers.kept() == kept and left.kept() is None
    assert isinstance(left, WorkerProcesses)


@pytest.mark.parametrize("event", [None, "worker", "dismissed"])
@pytest.mark.parametrize("out_of_memory", [False, True])
def test_workers_are_left_by_a_core_that_was_killed_while_it_adopted_them(
    event: str | None, out_of_memory: bool, make, started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were loaded before it. Not if it has refused them or started others, or was killed for its
    memory."""
    first = make()
    started.report({"event": "worker", "arguments": WORKER}, READY)
    first.read_status()
    (worker,) = orders(first, 1)
    assert isinstance(worker, WorkerStarted)
    kill(first)
    first.cause_of_death()
    kills = iter([3, 3 + out_of_memory])
    monkeypatch.setattr("pagewire.supervisor.child.oom_kills", lambda: next(kills, 3 + out_of_memory))
    second = make()
    second.activate(after_kill=True, kept=first.leave_workers())
    if event is not None:
        started.report({"event": event, "arguments": WORKER, "pid": worker.pid}, process=-1)
    second.read_status()
    kill(second)
    second.cause_of_death()
    left = second.leave_workers()
    assert (left is not None) is (event is None and not out_of_memory)
    if left is not None:
        assert left.kept() == KeptWorkers("ipc:///x", (worker.pid,))
        left.close()


def test_a_core_that_failed_leaves_no_workers(make, started: Started) -> None:
    """It has said that something is wrong, and they may be."""
    child = make()
    started.report({"event": "worker", "arguments": WORKER}, READY, FAILED)
    child.read_status()
    kill(child)
    assert isinstance(child.cause_of_death(), StartupError) and child.leave_workers() is None
