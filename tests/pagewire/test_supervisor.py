"""The supervisor with fake children: whatever they do, nothing of the service stays behind."""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


class Serve:
    """fake_serve.py as a child of the test."""

    def __init__(self, runtime: Path, *arguments: str) -> None:
        self.runtime = runtime
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "XDG_RUNTIME_DIR": str(runtime)}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fake_serve.py")), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def facts(self) -> dict[str, object]:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def end(self) -> tuple[int, str]:
        """Exit code and what stands on standard error."""
        _, error = self.process.communicate(timeout=30)
        return self.process.returncode, error

    def folders(self) -> list[Path]:
        return list(self.runtime.glob("*"))


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as runtime, contextlib.ExitStack() as stack:

        def start(*arguments: str) -> Serve:
            started = Serve(Path(runtime), *arguments)
            stack.callback(started.process.wait)
            stack.callback(started.process.kill)
            stack.callback(started.process.stderr.close)
            stack.callback(started.process.stdout.close)
            return started

        yield start


def wait_until_gone(pid: int) -> None:
    """Waits for the death of a process that is not our child."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            readable, _, _ = select.select([descriptor], [], [], 30)
            assert readable, f"process {pid} lives on"
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_and_leaves_nothing(serve, number: signal.Signals):
    service = serve("ready", "ready", "--port=5", "--model=m")
    facts = service.facts()
    (folder,) = service.folders()
    assert folder.stat().st_mode & 0o777 == 0o700
    service.process.send_signal(number)
    code, error = service.end()
    assert code == 0
    assert "Traceback" not in error
    assert service.folders() == []
    wait_until_gone(facts["pid"])


def test_a_service_that_is_started_with_nohup_survives_its_terminal(serve, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", functools.partial(subprocess.Popen, preexec_fn=ignore_hangup))
    service = serve("ready", "ready")
    service.facts()
    service.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        service.process.wait(0.3)
    service.process.terminate()
    assert service.end()[0] == 0


def ignore_hangup() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)


def test_children_get_their_flags_and_meet_in_the_folder(serve):
    service = serve("ready", "ready", "--port=5", "--max-num-seqs=3", "--served-model-name=x")
    facts = service.facts()
    (folder,) = service.folders()
    assert facts["model"] == "x" and facts["address"] == "127.0.0.1:5"
    arguments = facts["arguments"].split()  # of the child that was asked last: the frontend
    assert arguments[0] == "frontend"
    assert {"--port=5", f"--engine=ipc://{folder}/frontends.ipc", "--served-model-name=x"} <= {*arguments}
    assert not any("max-num-seqs" in argument for argument in arguments)


def test_several_frontends_share_a_port_that_was_reserved(serve):
    service = serve("ready", "ready", "--port=0", "--frontends=2")
    arguments = service.facts()["arguments"].split()
    (port,) = [part for part in arguments if part.startswith("--port=")]
    assert port != "--port=0" and "--reuse-port" in arguments


@pytest.mark.parametrize(
    ("engine", "frontend", "words"),
    [
        ("fails", "ready", ["cannot load the model", "tensor x is missing", "look at the file"]),
        ("ready", "fails", ["cannot load the model", "tensor x is missing", "look at the file"]),
        ("fails", "stuck", ["tensor x is missing"]),
        ("dies", "ready", ["the engine core is gone", "exit code 3"]),
        ("killed", "stuck", ["the engine core is gone", "SIGKILL", "memory"]),
        ("ready", "dies", ["the frontend is gone", "exit code 3"]),
        ("crashes", "ready", ["the engine core is gone", "exit code 4"]),
        ("ready", "crashes", ["the frontend is gone", "exit code 4"]),
    ],
)
def test_a_child_that_fails_takes_the_service_down_with_its_reason(
    serve, engine: str, frontend: str, words: list[str]
):
    service = serve(engine, frontend)
    code, error = service.end()
    assert code == 1
    assert "Traceback" not in error
    last = "\n".join(error.splitlines()[-3:])
    for word in words:
        assert word in last
    assert service.folders() == []


def test_stopping_while_it_starts(serve):
    service = serve("stuck", "ready")
    assert service.process.stderr.readline().startswith("loading weights")
    service.process.send_signal(signal.SIGINT)
    assert service.end()[0] == 0
    assert service.folders() == []


def test_a_deaf_child_is_killed(serve):
    service = serve("deaf", "deaf", "--shutdown-grace=0")
    facts = service.facts()
    service.process.send_signal(signal.SIGTERM)
    assert service.end()[0] == 0
    wait_until_gone(facts["pid"])
    assert service.folders() == []


def test_a_second_signal_kills_at_once(serve):
    service = serve("deaf", "deaf", "--shutdown-grace=1000")
    service.facts()
    service.process.send_signal(signal.SIGINT)
    while service.process.poll() is None:  # the first one may not have been taken yet
        service.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(0.1)
    assert service.process.returncode == 0
    assert service.folders() == []


def test_sigkill_takes_the_children_along_and_the_next_start_cleans_up(serve):
    service = serve("deaf", "deaf")
    facts = service.facts()
    service.process.kill()
    wait_until_gone(facts["pid"])
    (stale,) = service.folders()
    again = serve("ready", "ready")
    again.facts()
    (folder,) = again.folders()
    assert folder != stale
