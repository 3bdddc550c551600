"""A child process of the supervisor and the state it has reported on its status pipe."""

import contextlib
import json
import logging
import os
import signal
from subprocess import PIPE, Popen
from typing import Any

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.liveness import Liveness
from pagewire.host.proc_stat import describe_exit, read_vitals
from pagewire.host.resources import oom_kills
from pagewire.host.spawn import Activation, WorkerStarted
from pagewire.host.stack_dump import log_stacks
from pagewire.supervisor.worker_processes import WorkerProcesses

log = logging.getLogger(__name__)

Facts = dict[str, str | int | float]
STARTS_WORKERS = "--parent-starts-worker"
"""Flag of an engine core whose workers are started here."""


class Child:
    """A running `python -m pagewire ARGUMENTS`."""

    def __init__(self, name: str, arguments: list[str], *, standby: bool = False) -> None:
        """Starts the process. Raises OSError when the system cannot: no descriptors, processes or memory.

        standby: it gets `--standby`, and waits for activate(); so does one whose workers are started here.
        """
        self.name = name
        self.stands_by = False
        """True from when it has imported everything until activate()."""
        self.facts: Facts | None = None
        self.failure: StartupError | None = None
        self.loading: tuple[str, float] | None = None
        # In its own process group: Ctrl-C reaches the supervisor alone, and SIGKILL reaches its children too.
        self.process: Popen[bytes]
        options: dict[str, Any] = {"stdin": PIPE} if standby or STARTS_WORKERS in arguments else {}
        arguments = [*arguments, "--standby"] if standby else arguments
        self.process, self.status = process.spawn(arguments, process_group=0, **options)
        os.set_blocking(self.status, False)
        self._unread = b""
        self._liveness = Liveness()
        self._hangs = False
        self._oom_kills = oom_kills()
        self._workers = WorkerProcesses()
        self._worker_failure: StartupError | None = None

    def activate(self, *, after_kill: bool = False, kept: WorkerProcesses | None = None) -> None:
        """Lets a process that waits for it serve. after_kill: its predecessor, or the worker of that, was
        killed by SIGKILL. kept: the workers of its predecessor, which are its own from here on."""
        self.stands_by = False
        to_adopt = None
        if kept is not None:
            to_adopt = kept.kept()
            self._workers.take_over(kept)
        self._order(Activation(after_kill, to_adopt))

    def _order(self, order: Activation | WorkerStarted) -> None:
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died, which is_lost tells soon
                self.process.stdin.write(order.line())
                self.process.stdin.flush()

    def read_status(self) -> bool:
        """Reads the events on the pipe. Returns False at its end."""
        while True:
            try:
                data = os.read(self.status, 65536)
            except BlockingIOError:
                return True
            if not data:
                return False
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                self._take(json.loads(line))

    def _take(self, event: dict[str, Any]) -> None:
        kind = event.pop("event")
        self._liveness.heard()
        if kind == "ready":
            self.facts = event
        elif kind == "standby":
            self.stands_by = True
        elif kind == "failed":
            may_pass = event["may_pass"]
            self.failure = StartupError(event["what"], event["why"], event["todo"], may_pass=may_pass)
        elif kind == "loading":
            self.loading = event["what"], event["fraction"]
        elif kind == "worker":
            self._start_worker(event["arguments"])
        elif kind == "dismissed":
            self._dismiss_worker(event["pid"])

    def _dismiss_worker(self, pid: int) -> None:
        failure = self._workers.dismiss(pid)
        if failure is not None and self.facts is None:
            self._worker_failure = failure
        elif failure is not None:
            log.error("%s: %s", failure.what, failure.why)

    def _start_worker(self, arguments: list[str]) -> None:
        try:
            started = WorkerStarted(self._workers.start(arguments))
        except OSError as error:
            started = WorkerStarted(0, error.strerror or type(error).__name__)
        self._order(started)

    def kill_if_hung(self, awake_s: float, patience: float) -> None:
        """Kills a process that makes no progress (pagewire.host.liveness), with all that it started: it must
        not wake up and continue beside its successor."""
        if self.is_lost:
            return
        vitals, starts = read_vitals(self.process.pid), self.facts is None
        if self._liveness.hangs(awake_s, vitals, patience, starts=starts):
            self._hangs = True
            log_stacks(self.name, self.process.pid)
            self._end()

    @property
    def is_lost(self) -> bool:
        """True when the process has ended, has reported a failure, or was killed because it hung."""
        return self.failure is not None or self._has_ended

    @property
    def _has_ended(self) -> bool:
        """Checks without reaping: until wait() the process id, also the group's, is not reused."""
        if self.process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def cause_of_death(self) -> StartupError:
        """Returns why the process is lost, as far as that is known."""
        self.read_status()  # its last event may have arrived after its death was noticed
        if self.failure is not None:
            of_worker = self._worker_failure or self._workers.read_failure()
            return self.failure if of_worker is None or self.facts is not None else of_worker
        if self._hangs:
            why = f"it has made no progress for {self._liveness.silent_s:.1f} s, and was killed"
            todo = "see the lines above; if it was only slow, raise --hang-timeout"
            return StartupError(f"the {self.name} hangs", why, todo)
        self._end()
        why = describe_exit(self.process.returncode)
        return StartupError(f"the {self.name} is gone", why, "see the lines above, then start again")

    @property
    def was_killed(self) -> bool:
        """True if the process, or its worker, served or stood by until SIGKILL came from outside. To be asked
        after cause_of_death()."""
        if (self.facts is None and not self.stands_by) or self._hangs:
            return False
        if self.failure is not None:
            return self.failure.may_pass
        return self.process.returncode == -signal.SIGKILL

    @property
    def was_killed_from_outside(self) -> bool:
        """True if SIGKILL ended the process or its worker at any time, and not for a lack of memory: it says
        nothing about the next process. To be asked after cause_of_death()."""
        if self._hangs or oom_kills() != self._oom_kills:
            return False
        if self.failure is not None:
            return self.failure.may_pass
        return self.process.returncode == -signal.SIGKILL

    def leave_workers(self) -> WorkerProcesses | None:
        """Returns the workers of a process that served until it was killed or told to end, if its successor
        may adopt them; they are no longer its own. To be asked after cause_of_death()."""
        served = self.facts is not None and self.failure is None and not self._hangs
        may_adopt = served and self.process.returncode in (0, -signal.SIGKILL)
        if not may_adopt or self._workers.kept() is None:
            return None
        left, self._workers = self._workers, WorkerProcesses()
        return left

    def close(self) -> None:
        """Kills the process, if it still runs, with all that it started, and closes the pipe."""
        self._end()
        self._workers.close()
        os.close(self.status)
        if self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # of an order that it did not read
                self.process.stdin.close()

    def _end(self) -> None:
        """Kills the whole group, also after the process has died: it may have been starting a worker."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
