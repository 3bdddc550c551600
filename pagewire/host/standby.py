"""Standbys: processes that have imported everything, and fork those that serve.

A standby waits in serve_forks(), with one thread, and without any file, socket or device of the service. For
each order it forks twice: the process in between ends at once, and the kernel gives its child to the nearest
subreaper (prctl(2)), which is the parent of the standby. So what serves is a child of the supervisor like any
other, lives on when its standby dies, and ends with the supervisor.

Orders come on standard input, a socket: the arguments of the process in JSON, with the descriptors of its
status pipe and standard input. The process answers with its id, in digits.

A process may also fork a standby of itself, which forks its own children (forks_of_this()).
"""

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from subprocess import Popen

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host import stack_dump
from pagewire.host.spawn import Heartbeat, Status, die_with

FLAG = "--standby"
"""Of a command that is to call serve_forks()."""
NAME = b"standby"
"""Name of a standby's main thread, as ps and /proc/PID/comm show it."""
PATIENCE_S = 5.0
"""Seconds for a fork, which takes milliseconds. A standby that needs more is killed."""
_PR_SET_NAME, _PR_SET_CHILD_SUBREAPER = 15, 36
_MAX_ORDER_BYTES = 1 << 17
_GPU = "/dev/nvidia"


class ForkedProcess:
    """A child of this process that a standby has forked. Does what subprocess.Popen does."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> None:
        self.poll(0)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


Process = Popen[bytes] | ForkedProcess
Fork = Callable[[Sequence[str], int], tuple[Process, int]]
"""Takes the arguments of start()."""


def fork(standby: int, orders: socket.socket, arguments: Sequence[str], stdin: int) -> tuple[Process, int]:
    """Has a standby fork a child of this process. standby: its process id. orders: the other end of its
    standard input. Returns what start() does. Raises OSError when the system cannot fork now, and, after
    killing the standby, when that does not answer."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    reading, writing = os.pipe()
    try:
        orders.settimeout(PATIENCE_S)
        socket.send_fds(orders, [json.dumps(arguments).encode()], [writing, stdin])
        try:
            answer = orders.recv(64)
        except TimeoutError:
            os.kill(standby, signal.SIGKILL)
            answer = orders.recv(64)  # of a process that it has forked at the last moment
        return ForkedProcess(int(answer)), reading
    except (OSError, ValueError) as error:
        os.close(reading)
        raise OSError("the standby does not fork") from error
    finally:
        os.close(writing)


def start(arguments: Sequence[str], stdin: int, fork: Fork | None) -> tuple[Process, int]:
    """Starts `pagewire ARGUMENTS` in a process group of its own: forked by a standby, where that can. Returns
    the process and the reading end of its status pipe. Raises OSError."""
    if fork is not None:
        with contextlib.suppress(OSError):
            return fork(arguments, stdin)
    return process.spawn(arguments, process_group=0, stdin=stdin)


def kill_group(killed: Process, *, wait: bool) -> None:
    """Kills a process that was not waited for, with all that it started. wait: for the process; a thread
    waits for the others, which are children of this process where that is a subreaper."""

    def wait_for_group() -> None:
        killed.wait()
        with contextlib.suppress(ChildProcessError):
            while True:
                os.waitpid(-killed.pid, 0)

    with contextlib.suppress(ProcessLookupError):
        os.killpg(killed.pid, signal.SIGKILL)
    if wait:
        killed.wait()
    threading.Thread(target=wait_for_group, daemon=True).start()


def serve_forks(status: Status) -> list[str]:
    """Forks processes as ordered, and returns in each of them, with its arguments; `status` is then its own.
    Ends this process when its parent does not need it any more (SystemExit). Raises StartupError where what
    it forks could not compute."""
    parent = os.getppid()
    why = _why_not()
    if not why and not stat.S_ISSOCK(os.fstat(0).st_mode):
        why = "its standard input is not the socket of a supervisor"
    if why:
        raise StartupError("cannot stand by", why, "start the service with --no-standby")
    arguments = [FLAG]
    while any(word.startswith(FLAG) for word in arguments):
        _prctl(_PR_SET_NAME, NAME)
        status.standing_by()
        arguments = _serve_forks(status, parent)
        stack_dump.install()
    _prctl(_PR_SET_NAME, b"pagewire")
    return arguments


def forks_of_this(serve: Callable[[], int], name: bytes, status: Status) -> Fork | None:
    """Forks a standby of this process, which ends with it, and returns what has that fork a process which
    runs `serve` and ends with its exit code. To be called before this process has threads. None: its forks
    could not compute, or the system cannot fork now.

    name: of the main threads of all of these, at most 15 bytes. status: of this process; they report nothing.
    """
    if sys.platform != "linux" or _why_not():
        return None
    parent, (ours, theirs) = os.getpid(), socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        standby = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        return None
    if not standby:
        die_with(parent, signal.SIGKILL)
        ours.close()
        os.dup2(theirs.fileno(), 0)
        theirs.close()
        status.close()
        _prctl(_PR_SET_NAME, name)
        _serve_forks(status, parent)
        stack_dump.install()
        sys.exit(serve())
    theirs.close()
    lock = threading.Lock()

    def order(arguments: Sequence[str], stdin: int) -> tuple[Process, int]:
        with lock:
            return fork(standby, ours, arguments, stdin)

    return order


def _why_not() -> str:
    """Returns why this process must not fork, or an empty string: locks of other threads would stay locked,
    and a GPU cannot be used by a fork. A first fork ends threads whose library is prepared for it."""
    if not (first := os.fork()):
        os._exit(0)
    os.waitpid(first, 0)
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
        return f"its imports have started threads ({threads - 1}), whose locks its forks would keep"
    with os.scandir("/proc/self/fd") as files:
        if any(os.readlink(file).startswith(_GPU) for file in files):
            return "its imports have opened a GPU, which its forks could not use"
    return ""


def _serve_forks(status: Status, parent: int) -> list[str]:
    """Returns in each fork."""
    with socket.socket(fileno=os.dup(0)) as orders:
        while True:
            while not select.select([orders], [], [], Heartbeat.INTERVAL_S if status.attached else None)[0]:
                status.beat()
            order, descriptors, _, _ = socket.recv_fds(orders, _MAX_ORDER_BYTES, 2)
            if not order:
                sys.exit(0)
            if _forks(orders, parent):
                break
            for descriptor in descriptors:
                os.close(descriptor)
    status.move_to(descriptors[0])
    os.dup2(descriptors[1], 0)
    os.close(descriptors[1])
    arguments: list[str] = json.loads(order)
    return arguments


def _forks(orders: socket.socket, parent: int) -> bool:
    """Forks, and returns True in the new process."""
    standby = os.getpid()
    try:
        if between := os.fork():
            os.waitpid(between, 0)
            return False
        between = os.getpid()
        if os.fork():
            os._exit(0)
    except OSError:
        orders.send(b"")
        if os.getpid() != standby:
            os._exit(1)
        return False
    while os.getppid() == between:
        time.sleep(0.001)
    die_with(parent, signal.SIGKILL)
    os.setpgid(0, 0)  # until here it is killed with the standby
    orders.send(str(os.getpid()).encode())
    return True


def _prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)
