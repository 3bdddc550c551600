"""A standby forks processes that are children of its parent."""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire.host import standby
from pagewire.host.standby import FLAG, NAME, ForkedProcess, Process, fork, kill_group

PROGRAM = """
import json, os, sys
from pagewire.host.spawn import Status
from pagewire.host.standby import serve_forks
status = Status()
arguments = serve_forks(status)
status.ready(pid=os.getpid(), parent=os.getppid(), group=os.getpgid(0), arguments=" ".join(arguments))
sys.exit(int(sys.stdin.readline() or 7))
"""
PATIENCE_S = 60.0


class Standby:
    """A process that calls serve_forks()."""

    def __init__(self) -> None:
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.status, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PAGEWIRE_STATUS_FD": str(writing)},
            pass_fds=(writing,),
            stdin=theirs,
        )
        os.close(writing)
        theirs.close()
        assert next_event(self.status)["event"] == "standby"

    def fork(self, *arguments: str) -> "Forked":
        """Has it fork a process that reads its exit code from its standard input."""
        reading, writing = os.pipe()
        process, status = fork(self.process.pid, self.orders, arguments, reading)
        os.close(reading)
        return Forked(process, status, writing)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.orders.close()
        os.close(self.status)


class Forked:
    """A process that a standby has forked."""

    def __init__(self, process: Process, status: int, stdin: int) -> None:
        self.process, self.status, self.stdin = process, status, stdin

    def end(self, code: int = 0) -> int | None:
        """Has it end, and returns its exit code."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.stdin, b"%d\n" % code)
        self.process.wait()
        os.close(self.stdin)
        os.close(self.status)
        return self.process.returncode


def next_event(status: int) -> dict[str, object]:
    """Returns the next event that is no heartbeat."""
    line = b""
    while not line.endswith(b"\n") or b"beat" in line:
        line = b"" if line.endswith(b"\n") else line
        assert (read := os.read(status, 1)), "it has ended"
        line += read
    event: dict[str, object] = json.loads(line)
    return event


@pytest.fixture
def waiting() -> Iterator[Standby]:
    made = Standby()
    yield made
    made.close()


def test_what_it_forks_is_a_child_of_ours_in_a_group_of_its_own(waiting: Standby) -> None:
    """With its arguments, status pipe and standard input; and it lives on when the standby dies."""
    one, other = waiting.fork("engine", "--a=1"), waiting.fork("engine", "--b=2")
    for forked, argument in (one, "--a=1"), (other, "--b=2"):
        pid = forked.process.pid
        told = {"pid": pid, "parent": os.getpid(), "group": pid, "arguments": f"engine {argument}"}
        assert next_event(forked.status) == {"event": "ready", **told}
        assert Path(f"/proc/{pid}/comm").read_bytes().strip() != NAME
    assert Path(f"/proc/{waiting.process.pid}/comm").read_bytes().strip() == NAME
    assert one.end(3) == 3 and other.process.poll() is None
    waiting.process.kill()
    waiting.process.wait()
    assert other.end(4) == 4


def test_a_standby_forks_a_standby(waiting: Standby) -> None:
    """Which forks as its origin does, also when that has died."""
    orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    process, status = fork(waiting.process.pid, waiting.orders, ["engine", FLAG], theirs.fileno())
    theirs.close()
    assert next_event(status) == {"event": "standby"}
    waiting.process.kill()
    waiting.process.wait()
    reading, writing = os.pipe()
    forked = Forked(*fork(process.pid, orders, ["engine"], reading), writing)
    os.close(reading)
    assert next_event(forked.status)["parent"] == os.getpid()
    assert forked.end(5) == 5
    orders.close()  # which ends it
    process.wait()
    assert process.returncode == 0
    os.close(status)


def test_a_process_that_is_killed_is_told_by_its_exit_code(waiting: Standby) -> None:
    forked = waiting.fork("engine")
    assert isinstance(forked.process, ForkedProcess) and forked.process.poll() is None
    os.kill(forked.process.pid, signal.SIGKILL)
    assert forked.end() == -signal.SIGKILL
    forked.process.terminate()  # does nothing: its process id may be another one's


def test_terminate_asks_a_process_to_end(waiting: Standby) -> None:
    forked = waiting.fork("engine")
    next_event(forked.status)
    forked.process.terminate()
    assert forked.end() == -signal.SIGTERM


def test_a_standby_that_is_stopped_is_killed(waiting: Standby, monkeypatch: pytest.MonkeyPatch) -> None:
    """And no process is left of the order that it did not read."""
    monkeypatch.setattr(standby, "PATIENCE_S", 0.01)
    os.kill(waiting.process.pid, signal.SIGSTOP)
    with pytest.raises(OSError, match="does not fork"):
        waiting.fork("engine")
    assert waiting.process.wait(PATIENCE_S) == -signal.SIGKILL


def test_a_standby_that_has_ended_forks_nothing(waiting: Standby) -> None:
    waiting.process.kill()
    waiting.process.wait()
    with pytest.raises(OSError, match="does not fork"):
        waiting.fork("engine")


def test_a_group_is_killed_and_waited_for() -> None:
    """With what a leader has left that died before; no zombie stays."""
    command = ["sh", "-c", "sleep 60 & echo $!; exec sleep 60"]
    leader = subprocess.Popen(command, stdout=subprocess.PIPE, process_group=0)
    assert leader.stdout is not None
    left = int(leader.stdout.readline())
    descriptor = os.pidfd_open(left)
    leader.kill()
    os.waitid(os.P_PID, leader.pid, os.WEXITED | os.WNOWAIT)
    kill_group(leader, wait=True)
    assert leader.returncode == -signal.SIGKILL
    assert select.select([descriptor], [], [], PATIENCE_S)[0]
    os.close(descriptor)
    while Path(f"/proc/{left}").exists():
        time.sleep(0.001)
    leader.stdout.close()
