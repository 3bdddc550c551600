"""The supervisor with fake children: whatever they do, no process or file stays behind."""

import contextlib
import functools
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.host.standby import NAME
from tests.free_ports import free_ports
from tests.patience import PATIENCE_S, wait_until

ROOT = Path(__file__).parents[3]


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
        """Returns the exit code and standard error."""
        _, error = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, error

    def folders(self) -> list[Path]:
        return list(self.runtime.glob("*"))


@pytest.fixture(autouse=True)
def a_terminal() -> Iterator[None]:
    """Restores SIGHUP's default, also when the tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    with tempfile.TemporaryDirectory(prefix="pw-", dir="/tmp") as runtime, contextlib.ExitStack() as stack:

        def start(*arguments: str, standby: bool = False) -> Serve:
            own = ["--standbys=1", "--device=simulated"] if standby else ["--no-standby"]
            started = Serve(Path(runtime), *arguments[:2], *own, *arguments[2:])
            stack.callback(started.process.wait)
            stack.callback(started.process.kill)
            stack.callback(started.process.stderr.close)
            stack.callback(started.process.stdout.close)
            return started

        yield start


def wait_until_gone(pid: int) -> None:
    """Waits for the death of a process that is not a child of the test."""
    with contextlib.suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            readable, _, _ = select.select([descriptor], [], [], PATIENCE_S)
            assert readable, f"process {pid} lives on"
        finally:
            os.close(descriptor)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_everything_and_leaves_nothing(serve, number: signal.Signals):
    service = serve("ready", "ready", "--model=m")
    facts = service.facts()
    (folder,) = service.folders()
    assert folder.stat().st_mode & 0o777 == 0o700
    service.process.send_signal(number)
    code, error = service.end()
    assert code == 0
    assert "Traceback" not in error
    assert service.folders() == []
    wait_until_gone(facts["pid"])


def test_nohup_keeps_the_service_running_after_a_hangup(serve, monkeypatch):
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
    (port,) = free_ports(1)
    service = serve("ready", "ready", f"--port={port}", "--max-num-seqs=3", "--served-model-name=x")
    facts = service.facts()
    (folder,) = service.folders()
    assert facts["model"] == "x" and facts["address"] == f"127.0.0.1:{port}"
    arguments = facts["arguments"].split()  # of the child that reported last: the frontend
    assert arguments[0] == "frontend"
    assert {f"--port={port}", f"--engine=ipc://{folder}/frontends.ipc", "--served-model-name=x"} <= {
        *arguments
    }
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
    service = serve(engine, frontend, "--no-restart")
    code, error = service.end()
    assert code == 1
    assert "Traceback" not in error
    last = "\n".join(error.splitlines()[-3:])
    for word in words:
        assert word in last
    assert service.folders() == []


@pytest.mark.parametrize(("victim", "name"), [("engine", "engine core"), ("frontend", "frontend")])
def test_a_child_that_dies_is_replaced(serve, victim: str, name: str):
    """Logs one line for the death and one for the return; the other child keeps running."""
    service = serve("ready", "ready")
    facts = service.facts()
    os.kill(facts[f"{victim}_pid"], signal.SIGKILL)
    while (line := service.process.stderr.readline()).startswith("loading"):
        pass
    assert line.startswith(f"the {name} is gone: it was killed by SIGKILL")
    assert line.endswith(f"the {name} starts again at once\n")
    assert re.fullmatch(rf"the {name} is back after \d+\.\d s\n", service.process.stderr.readline())
    other = facts["frontend_pid" if victim == "engine" else "engine_pid"]
    os.kill(other, 0)
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")
    wait_until_gone(other)
    assert service.folders() == []


def test_a_restart_that_the_system_refuses_is_tried_again(serve):
    """No descriptors, no processes, no memory: often just what killed the child in the first place."""
    service = serve("ready", "ready")
    facts = service.facts()
    limits = resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    os.kill(facts["frontend_pid"], signal.SIGKILL)
    while not (line := service.process.stderr.readline()).startswith("cannot start the frontend"):
        assert line, "the supervisor ended"
    assert line.endswith("Too many open files; trying again in 0.5 s\n")
    resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, limits)
    while not (line := service.process.stderr.readline()).startswith("the frontend is back after"):
        assert line, "the supervisor ended"
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")
    assert service.folders() == []


def test_a_child_that_cannot_start_again_ends_the_service_with_its_reason(serve):
    service = serve("ready,fails", "ready")
    os.kill(service.facts()["engine_pid"], signal.SIGKILL)
    code, error = service.end()
    assert code == 1
    assert error.splitlines()[-3:] == [
        "error: cannot load the model",
        "why:   tensor x is missing",
        "do:    look at the file",
    ]
    assert service.folders() == []


def test_a_child_whose_start_is_disturbed_may_try_again(serve):
    """A worker that is killed while its core restarts is no permanent failure, unlike a missing file: it is
    tried again after a short pause, however often."""
    service = serve("ready,unlucky", "ready", "--max-deaths=2")
    os.kill(service.facts()["engine_pid"], signal.SIGABRT)
    pauses = []
    while len(pauses) < 4:
        line = service.process.stderr.readline()
        assert line
        if "starts again" in line:
            pauses.append(line.rpartition("starts again ")[2].strip())
    assert pauses == ["at once", "in 0.5 s", "in 0.5 s", "in 0.5 s"], "a kill says nothing about the next one"
    service.process.terminate()
    assert service.end()[0] == 0


@pytest.mark.parametrize("victim", ["engine", "frontend"])
def test_a_child_that_is_killed_before_the_service_is_ready_is_replaced(serve, victim: str):
    behaviours = {"engine": "ready", "frontend": "ready"} | {victim: "killed,ready"}
    service = serve(behaviours["engine"], behaviours["frontend"])
    assert service.facts()["port"] == 1234
    service.process.terminate()
    code, error = service.end()
    assert code == 0 and "killed by SIGKILL" in error and "starts again at once" in error


@pytest.mark.parametrize("later", ["crashes", "dies"])
def test_a_child_that_dies_again_and_again_ends_the_service(serve, later: str):
    """At once, then after half a second: the third death is the last."""
    service = serve(f"ready,{later}", "ready", "--max-deaths=3")
    os.kill(service.facts()["engine_pid"], signal.SIGABRT)
    code, error = service.end()
    assert code == 1
    assert sum("starts again at once" in line for line in error.splitlines()) == 1
    assert sum("starts again in 0.5 s" in line for line in error.splitlines()) == 1
    last = "\n".join(error.splitlines()[-3:])
    assert "the engine core is gone" in last and "exit code" in last
    assert "--max-deaths is 3" in last
    assert service.folders() == []


def test_kills_from_outside_do_not_end_the_service(serve):
    """An operator, a test or the kernel's OOM killer ends processes that work."""
    service = serve("ready", "ready", "--max-deaths=2")
    pid = service.facts()["engine_pid"]
    for _ in range(6):
        os.kill(pid, signal.SIGKILL)
        while not (line := service.process.stderr.readline()).startswith("the engine core is back"):
            assert line, "the supervisor ended"
        (pid,) = engines(service)
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")


def test_standbys_fork_what_serves_and_one_another(serve):
    """The process that serves is a child of the supervisor, and lives on when the standby dies that has
    forked it; so it is after kill upon kill of all but one standby, and at the end nothing is left."""
    service = serve("ready", "ready", "--standbys=2", "--max-deaths=2", standby=True)
    serving = service.facts()["engine_pid"]
    for _ in range(4):
        wait_until(lambda: len(standbys(service)) == 2 and len(engines(service)) == 3)
        first, second = standbys(service)
        os.kill(serving, signal.SIGKILL)
        while not (line := service.process.stderr.readline()).startswith("the engine core is back"):
            assert line, "the supervisor ended"
        (serving,) = set(engines(service)) - {first, second}
        os.kill(first, signal.SIGKILL)
        wait_until(lambda first=first: first not in engines(service) and len(standbys(service)) == 2)
        assert serving in engines(service) and second in standbys(service)
    pids = engines(service)
    service.process.send_signal(signal.SIGINT)
    assert service.end()[0] == 0
    for pid in pids:
        wait_until_gone(pid)


def test_what_a_standby_has_forked_ends_with_the_supervisor(serve):
    service = serve("ready", "ready", standby=True)
    first = service.facts()["engine_pid"]
    wait_until(lambda: len(standbys(service)) == 1)
    os.kill(first, signal.SIGKILL)
    while not (line := service.process.stderr.readline()).startswith("the engine core is back"):
        assert line, "the supervisor ended"
    pids = engines(service)
    assert len(pids) == 2
    service.process.kill()
    for pid in pids:
        wait_until_gone(pid)


def test_a_standby_that_is_stopped_keeps_nothing_waiting(serve):
    """It is passed over; the process is started as without standbys. Nor is it replaced meanwhile, as a hung
    one would be."""
    service = serve("ready", "ready", "--hang-timeout=0", standby=True)
    first = service.facts()["engine_pid"]
    wait_until(lambda: len(standbys(service)) == 1)
    (stopped,) = standbys(service)
    os.kill(stopped, signal.SIGSTOP)
    os.kill(first, signal.SIGKILL)
    while not (line := service.process.stderr.readline()).startswith("the engine core is back"):
        assert line, "the supervisor ended"
    assert len(engines(service)) == 2 and first not in engines(service)
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")
    wait_until_gone(stopped)


def test_a_standby_that_dies_costs_a_line_in_the_log(serve):
    service = serve("ready,leaves", "ready", standby=True)
    pid = service.facts()["engine_pid"]
    while (line := service.process.stderr.readline()).startswith("loading"):
        pass
    assert line == "the standby of the engine core is gone: it ended with exit code 5\n"
    os.kill(pid, 0)
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")


def engines(service: Serve) -> list[int]:
    """Returns the pids of the service's engine cores, the oldest first."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split()
    return [int(pid) for pid in children if b"engine" in told(pid, "cmdline").split(b"\0")]


def standbys(service: Serve) -> list[int]:
    """Returns the pids of those that are standbys now."""
    return [pid for pid in engines(service) if told(pid, "comm").strip() == NAME]


def told(pid: int | str, name: str) -> bytes:
    """Returns what the kernel tells of a process; nothing of one that has just ended."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{pid}/{name}").read_bytes()
    return b""


@pytest.mark.parametrize("behaviours", [("hangs,ready", "ready"), ("ready", "hangs,ready")])
def test_a_child_that_hangs_is_killed_and_replaced(serve, behaviours: tuple[str, str]):
    """A hung child is alive: the kernel reports nothing."""
    service = serve(*behaviours, "--hang-timeout=1")
    facts = service.facts()
    hangs, name = ("engine", "engine core") if "hangs" in behaviours[0] else ("frontend", "frontend")
    line = service.process.stderr.readline()
    while line.startswith("loading"):
        line = service.process.stderr.readline()
    assert re.fullmatch(
        rf"the {name} hangs: it has made no progress for \d\.\d s, and was killed;"
        rf" the {name} starts again at once\n",
        line,
    )
    wait_until_gone(facts[f"{hangs}_pid"])
    assert service.process.stderr.readline().startswith(f"the {name} is back after")
    service.process.send_signal(signal.SIGINT)
    assert service.end() == (0, "")
    assert service.folders() == []


def test_a_child_that_hangs_before_its_first_event_ends_the_service(serve, monkeypatch):
    """Both do: one that only gets no core for so short a time would be taken for hung, too."""
    monkeypatch.setenv("STARTING_PATIENCE_S", "0.5")
    service = serve("frozen", "frozen", "--hang-timeout=1")
    code, error = service.end()
    assert code == 1
    what, why, todo = error.splitlines()[-3:]
    assert what in ("error: the engine core hangs", "error: the frontend hangs")
    assert "no progress" in why and "--hang-timeout" in todo
    assert service.folders() == []


def test_hang_timeout_0_allows_silence(serve):
    service = serve("hangs", "ready", "--hang-timeout=0")
    facts = service.facts()
    with pytest.raises(subprocess.TimeoutExpired):
        service.process.wait(1.5)
    os.kill(facts["engine_pid"], 0)
    service.process.send_signal(signal.SIGINT)
    assert service.end()[0] == 0


@pytest.mark.parametrize(("later", "line"), [("stuck", "at once"), ("dies", "in 1.0 s")])
def test_ctrl_c_while_a_child_is_replaced(serve, later: str, line: str):
    """While the new process starts, and before it is started."""
    service = serve(f"ready,{later}", "ready")
    facts = service.facts()
    os.kill(facts["engine_pid"], signal.SIGKILL)
    while line not in service.process.stderr.readline():
        pass
    service.process.send_signal(signal.SIGINT)
    code, error = service.end()
    assert code == 0 and "Traceback" not in error
    wait_until_gone(facts["frontend_pid"])
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
    while service.process.poll() is None:  # the first may not have been read yet
        service.process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            service.process.wait(3)  # a signal at the very end would reach Python's handler
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
