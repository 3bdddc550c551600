"""A worker's process: what it reports, how it ended."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from engine_core.io.worker_process import WorkerChild, WorkerDied
from pagewire.internal.v1.worker_pb2 import Failed
from tests.patience import PATIENCE_S


@contextmanager
def child(script: str) -> Iterator[WorkerChild]:
    """A Python process; `status` is its status pipe."""
    reading, writing = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", f"import os, time; status = {writing}\n{script}"], pass_fds=(writing,)
    )
    os.close(writing)
    made = WorkerChild(process, reading)
    try:
        yield made
    finally:
        made.close(0.0)


def death(worker: WorkerChild) -> WorkerDied:
    worker._process.wait(PATIENCE_S)
    return worker.cause_of_death("the worker", "it cannot be reached")


def test_an_exit_code_is_the_cause() -> None:
    with child("os._exit(3)") as worker:
        error = death(worker)
    assert error.what == f"the worker (pid {worker.pid}) is gone"
    assert error.why == "it ended with exit code 3" and not error.may_pass


def test_a_kill_may_pass() -> None:
    with child("time.sleep(600)") as worker:
        worker.kill()
        error = death(worker)
    assert "killed by SIGKILL" in error.why and error.may_pass


def test_its_own_report_is_the_cause() -> None:
    event = r'{"event": "failed", "what": "cannot load", "why": "no torch", "todo": "install it"}\n'
    with child(f"os.write(status, b'{event}')") as worker:
        error = death(worker)
    assert (error.what, error.why, error.todo) == ("cannot load", "no torch", "install it")


def test_a_process_that_lives_is_described_from_outside() -> None:
    with child("time.sleep(600)") as worker:
        error = worker.cause_of_death("rank 1 of the worker", "it cannot be reached")
    assert str(error) == f"rank 1 of the worker (pid {worker.pid}) is gone: it cannot be reached"


def test_close_kills_after_the_grace() -> None:
    with child("time.sleep(600)") as worker:
        pass
    assert worker._process.returncode == -signal.SIGKILL


def test_an_error_that_a_worker_sends() -> None:
    error = WorkerDied.reported(Failed(type="ValueError", why="bad plan"))
    assert (error.what, error.why) == ("the worker failed", "bad plan")
