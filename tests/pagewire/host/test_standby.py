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
from pagewire.host.stack_dump import stacks_of
from pagewire.host.standby import FLAG, NAME, ForkedProcess, Process, fork, kill_group

PROGRAM = """
import json, os, sys, threading
from pagewire.errors import StartupError
from pagewire.host import stack_dump, standby
from pagewire.host.spawn import Status
from pagewire.host.standby import serve_forks
status = Status()
stack_dump.install()
if "threads" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if "device" in sys.argv:
    standby._GPU = "/dev/zero"
    opened = open(standby._GPU)
if "shallow" in sys.argv:
    sys.setrecursionlimit(40)
try:
    arguments = serve_forks(status)
except StartupError as error:
    status.failed(error)
    raise
status.ready(pid=os.getpid(), parent=os.getppid(), group=os.getpgid(0), arguments=" ".join(arguments))
sys.exit(int(sys.stdin.readline() or 7))
"""
PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for a fork for as long as a busy machine takes."""
    monkeypatch.setattr(standby, "PATIENCE_S", PATIENCE_S)


class Standby:
    """A process that calls serve_forks()."""

    def __init__(self, *options: str) -> None:
        """options: what it does before."""
        self.orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.status, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *options],
            env={**os.environ, "PAGEWIRE_STATUS_FD": str(writing)},
            pass_fds=(writing,),
            stdin=theirs,
        )
        os.close(writing)
        theirs.close()
        self.event = next_event(self.status)

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
def waiting(request: pytest.FixtureRequest) -> Iterator[Standby]:
    made = Standby(*getattr(request, "param", ()))
    yield made
    made.close()


def test_what_it_forks_is_a_child_of_ours_in_a_group_of_its_own(waiting: Standby) -> None:
    """With its arguments, status pipe and standard input; and it lives on when the standby dies."""
    assert waiting.event == {"event": "standby"}
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


@pytest.mark.parametrize("waiting", [["shallow"]], indirect=True)
def test_standbys_fork_one_another_without_end(waiting: Standby) -> None:
    """Each is killed once it has forked the next one, so that the last one has many ancestors."""
    process: Process = waiting.process
    orders, statuses = [waiting.orders], []
    for _ in range(40):
        own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        before, (process, status) = process, fork(process.pid, orders[-1], ["engine", FLAG], theirs.fileno())
        theirs.close()
        orders.append(own)
        statuses.append(status)
        assert next_event(status) == {"event": "standby"}
        os.kill(before.pid, signal.SIGKILL)
        before.wait()
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    for own, status in zip(orders[1:], statuses, strict=True):
        own.close()
        os.close(status)


def test_a_fork_has_files_of_its_own(waiting: Standby) -> None:
    """Its stacks are not among those of other forks, and no program that it starts gets any of them."""
    forks = [waiting.fork("engine") for _ in range(2)]
    for forked in forks:
        next_event(forked.status)
        pid = forked.process.pid
        for _ in range(2):
            while "in <module>" not in stacks_of(pid):
                pass  # a busy machine writes later than it is waited for
        names = {file.name: os.readlink(file) for file in Path(f"/proc/{pid}/fd").iterdir()}
        assert sum("pagewire-stacks" in name for name in names.values()) == 1
        for name in (name for name in names if int(name) > 2):
            _, flags, *_ = Path(f"/proc/{pid}/fdinfo/{name}").read_text().split("\n")
            assert int(flags.removeprefix("flags:"), 8) & os.O_CLOEXEC, names[name]
    assert [forked.end() for forked in forks] == [0, 0]


@pytest.mark.parametrize(
    ("waiting", "why"),
    [
        (["threads"], "its imports have started threads (1), whose locks its forks would keep"),
        (["device"], "its imports have opened a GPU, which its forks could not use"),
    ],
    indirect=["waiting"],
)
def test_a_process_whose_forks_could_not_compute_is_no_standby(waiting: Standby, why: str) -> None:
    assert (waiting.event["event"], waiting.event["why"]) == ("failed", why)


def test_a_standby_without_a_supervisor_says_what_it_needs() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "pagewire", "engine", "demo", "--standby"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode == 1 and "its standard input is not the socket of a supervisor" in ended.stderr


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


ORIGIN = """
import os, socket, sys, threading
from pagewire.host.spawn import Status
from pagewire.host.standby import forks_of_this
if "threads" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
status = Status()
order = forks_of_this(lambda: int(sys.stdin.readline() or 7), b"forked", status)
if order is None:
    sys.exit(9)
status.beat()
ours, theirs = socket.socketpair()
forked, events = order([], theirs.fileno())
theirs.close()
name = open(f"/proc/{forked.pid}/comm").read().strip()
parent = open(f"/proc/{forked.pid}/stat").read().rpartition(")")[2].split()[1]
print(name, int(parent) == os.getpid(), forked.pid, flush=True)
if "lives" in sys.argv:
    ours.sendall(b"5\\n")
    forked.wait()
    print(forked.returncode, os.read(events, 1), flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def origin(*options: str) -> Iterator[subprocess.Popen[str]]:
    """A process that forks children of its own by forks_of_this()."""
    pipe, command = subprocess.PIPE, [sys.executable, "-c", ORIGIN, *options]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as made:
        yield made
        made.kill()


def test_a_process_forks_children_by_a_standby_of_its_own() -> None:
    """Each runs a function with its own standard input, and ends with what that returns."""
    with origin("lives") as made:
        assert made.stdout is not None
        assert made.stdout.readline().split()[:2] == ["forked", "True"]
        assert made.stdout.readline() == "5 b''\n", "its status pipe ends with it, and had no event"


def test_children_that_a_process_forks_end_with_it() -> None:
    with origin() as made:
        assert made.stdout is not None
        *_, pid = made.stdout.readline().split()
        with contextlib.suppress(ProcessLookupError):  # it has ended
            descriptor = os.pidfd_open(int(pid))
            made.kill()
            assert select.select([descriptor], [], [], PATIENCE_S)[0]
            os.close(descriptor)


def test_a_process_with_threads_forks_no_children() -> None:
    with origin("threads") as made:
        assert made.wait(PATIENCE_S) == 9


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
