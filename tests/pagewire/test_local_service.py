"""A private service with a fake `pagewire serve` (supervisor/fake_child.py): start, failures, stop."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from pagewire import StartupError
from pagewire.config import ServeConfig
from pagewire.host import spawn as process
from pagewire.local_service import Service

FAKE_CHILD = Path(__file__).parent / "supervisor" / "fake_child.py"


@pytest.fixture
def behave(monkeypatch: pytest.MonkeyPatch):
    """Makes `pagewire serve` behave as fake_child.py says; collects the processes."""
    started: list[subprocess.Popen[bytes]] = []

    def use(behaviour: str) -> list[subprocess.Popen[bytes]]:
        def spawn(arguments, *, from_birth, **options):
            assert not from_birth, "this process may have threads of others"
            reading, writing = os.pipe()
            variables = {"PAGEWIRE_STATUS_FD": str(writing), "PAGEWIRE_PARENT_PID": str(os.getpid())}
            command = [sys.executable, str(FAKE_CHILD), behaviour, *arguments]
            path = {"PYTHONPATH": str(Path(__file__).parents[2])}
            environment = {**os.environ, **variables, **path}
            started.append(subprocess.Popen(command, env=environment, pass_fds=(writing,), **options))
            os.close(writing)
            return started[-1], reading

        monkeypatch.setattr(process, "spawn", spawn)
        return started

    return use


def test_it_starts_with_its_flags_reports_loading_and_stops(behave):
    started = behave("ready")
    loading: list[tuple[str, float]] = []
    with Service(ServeConfig(max_num_seqs=3), lambda *what: loading.append(what)) as service:
        assert service.facts["port"] == 1234 and service.pid == started[0].pid
        assert service.facts["arguments"] == "serve --max-num-seqs=3"
        assert loading == [("weights", 0.5)]
    assert started[0].returncode == 0
    service.close()


def test_it_outlives_the_thread_that_made_it(behave):
    """The parent-death signal comes when a thread dies, not a process."""
    started = behave("ready")
    made: list[Service] = []
    thread = threading.Thread(target=lambda: made.append(Service(ServeConfig())))
    thread.start()
    thread.join()
    with pytest.raises(subprocess.TimeoutExpired):
        started[0].wait(0.3)
    made[0].close()


@pytest.mark.parametrize(("behaviour", "words"), [("fails", "tensor x is missing"), ("dies", "exit code 3")])
def test_a_failed_start_raises_the_reason(behave, behaviour: str, words: str):
    started = behave(behaviour)
    with pytest.raises(StartupError, match=words):
        Service(ServeConfig())
    assert started[0].returncode is not None


def test_a_deaf_one_is_killed(behave, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("pagewire.local_service._STOP_S", 0.1)
    started = behave("deaf")
    Service(ServeConfig()).close()
    assert started[0].returncode == -9


def test_spawning_that_fails_raises_in_the_caller(monkeypatch: pytest.MonkeyPatch):
    def spawn(arguments, **options):
        raise OSError("no more processes")

    monkeypatch.setattr(process, "spawn", spawn)
    with pytest.raises(OSError, match="no more processes"):
        Service(ServeConfig())
