"""Workers that the supervisor starts for an engine core."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from pagewire.host import spawn as process
from pagewire.host.proc_stat import read_exit_code
from pagewire.host.spawn import KeptWorkers
from pagewire.supervisor.worker_processes import WorkerProcesses

ADDRESS = "ipc:///x/workers.ipc"


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> Iterator[WorkerProcesses]:
    def spawn(arguments: Sequence[str], **options: object) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        os.close(writing)
        command = [sys.executable, "-S", "-c", "import time; time.sleep(60)"]
        return subprocess.Popen(command, **options), reading  # type: ignore[call-overload]

    monkeypatch.setattr(process, "spawn", spawn)
    made = WorkerProcesses()
    yield made
    made.close()


def start(workers: WorkerProcesses, address: str = ADDRESS) -> int:
    return workers.start(["worker", f"--engine={address}", "--rank=0"])


def kill(pid: int) -> None:
    """Returns when the process is a zombie."""
    os.kill(pid, signal.SIGKILL)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def wait_until_gone(pid: int) -> None:
    """Returns when the process was waited for."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, 0)
            time.sleep(0.001)


def test_what_a_worker_reports_before_it_connects(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is known while the worker is there, and when it is dismissed."""
    event = {"event": "failed", "what": "--dtype", "why": "no such", "todo": "choose another"}

    def spawn(arguments: Sequence[str], **options: object) -> "tuple[subprocess.Popen[bytes], int]":
        reading, writing = os.pipe()
        os.write(
            writing, json.dumps({"event": "loading"}).encode() + b"\n" + json.dumps(event).encode() + b"\n"
        )
        os.close(writing)
        return subprocess.Popen(["true"], **options), reading  # type: ignore[call-overload]

    monkeypatch.setattr(process, "spawn", spawn)
    workers = WorkerProcesses()
    pid = start(workers)
    for failure in (workers.read_failure(), workers.dismiss(pid)):
        assert failure is not None
        assert (failure.what, failure.why, failure.todo) == ("--dtype", "no such", "choose another")
    assert workers.read_failure() is None


def test_living_workers_are_kept(workers: WorkerProcesses) -> None:
    pids = start(workers), start(workers)
    assert workers.kept() == KeptWorkers(ADDRESS, pids)


def test_nothing_is_kept_of_a_group_that_is_not_whole(workers: WorkerProcesses) -> None:
    _, lost = start(workers), start(workers)
    kill(lost)
    assert workers.kept() is None
    assert read_exit_code(lost) == -signal.SIGKILL, "its engine core may still ask how it has ended"


def test_nothing_is_kept_where_it_is_unknown_which_group_serves(workers: WorkerProcesses) -> None:
    """A core that was killed while it adopted had two."""
    serving, spare = start(workers), start(workers, ADDRESS + ".7")
    assert workers.kept() is None
    workers.dismiss(spare)
    assert workers.kept() == KeptWorkers(ADDRESS, (serving,))
    wait_until_gone(spare)


@pytest.mark.parametrize("end", [WorkerProcesses.close, lambda workers: workers.take_over(workers)])
def test_nothing_is_kept_of_no_worker(
    workers: WorkerProcesses, end: Callable[[WorkerProcesses], None]
) -> None:
    end(workers)
    assert workers.kept() is None


def test_workers_are_taken_over(workers: WorkerProcesses) -> None:
    pid, successor = start(workers), WorkerProcesses()
    successor.take_over(workers)
    workers.close()
    assert workers.kept() is None and successor.kept() == KeptWorkers(ADDRESS, (pid,))
    successor.close()
    wait_until_gone(pid)
    assert read_exit_code(pid) is None
