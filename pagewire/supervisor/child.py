"""A child process of the supervisor and the state it has reported on its status pipe."""

import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import Sequence
from typing import Any

from pagewire.errors import StartupError
from pagewire.host.liveness import Liveness
from pagewire.host.proc_stat import describe_exit, ended_from_outside, read_vitals
from pagewire.host.resources import oom_kills
from pagewire.host.spawn import Activation, KeptWorkers, WorkerStarted
from pagewire.host.stack_dump import log_stacks
from pagewire.host.standby import Fork, Process, fork, kill_group, start
from pagewire.supervisor.worker_processes import WorkerProcesses

log = logging.getLogger(__name__)

Facts = dict[str, str | int | float]


class Child:
    """A running `python -m pagewire ARGUMENTS`."""

    def __init__(
        self, name: str, arguments: list[str], fork: Fork | None = None, fork_worker: Fork | None = None
    ) -> None:
        """Starts the process. Raises OSError when the system cannot: no descriptors, processes or memory.

        fork: of its standbys. fork_worker: of its worker's.
        """
        self.name = name
        self.stands_by = False
        """True from when it has imported everything, and forks others."""
        self.facts: Facts | None = None
        self.failure: StartupError | None = None
        self.loading: tuple[str, float] | None = None
        # In its own process group: Ctrl-C reaches the supervisor alone, and SIGKILL reaches its children too.
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.process, self.status = start(arguments, theirs.fileno(), fork)
        except OSError:
            self._orders.close()
            raise
        finally:
            theirs.close()
        os.set_blocking(self.status, False)
        self._fork_worker = fork_worker
        self._unread = b""
        self._liveness = Liveness()
        self._hangs = False
        self._oom_kills = oom_kills()
        self._workers = WorkerProcesses()
        self._to_adopt: KeptWorkers | None = None
        self._worker_failure: StartupError | None = None

    def activate(self, *, after_kill: bool = False, kept: WorkerProcesses | None = None) -> None:
        """Lets an engine core serve, which waits for it. after_kill: its predecessor, or the worker of that,
        was ended from outside. kept: the workers of its predecessor, which are its own from here on."""
        if kept is not None:
            self._to_adopt = kept.kept()
            self._workers.take_over(kept)
        self._order(Activation(after_kill, self._to_adopt))

    def _order(self, order: Activation | WorkerStarted) -> None:
        with contextlib.suppress(OSError):  # it has died, which is_lost tells soon
            self._orders.send(order.line())

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
            started = WorkerStarted(self._workers.start(arguments, self._fork_worker))
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
        assert self.process.returncode is not None
        why = describe_exit(self.process.returncode)
        return StartupError(f"the {self.name} is gone", why, "see the lines above, then start again")

    @property
    def can_fork(self) -> bool:
        """True for a standby that has imported everything, lives, and is not stopped."""
        if not self.stands_by or self.is_lost:
            return False
        vitals = read_vitals(self.process.pid)
        return vitals is not None and vitals.state not in "Tt"

    def fork(self, arguments: Sequence[str], stdin: int) -> tuple[Process, int]:
        """Has a standby fork a process. See pagewire.host.standby.fork()."""
        return fork(self.process.pid, self._orders, arguments, stdin)

    @property
    def was_killed(self) -> bool:
        """True if the process served until another process or the system ended it or its worker. To be asked
        after cause_of_death()."""
        return self.facts is not None and self._was_ended

    @property
    def was_killed_from_outside(self) -> bool:
        """True if another process has ended this one or its worker at any time, and not the system for a lack
        of memory: it says nothing about the next process. To be asked after cause_of_death()."""
        return self._was_ended and oom_kills() == self._oom_kills

    @property
    def _was_ended(self) -> bool:
        if self.failure is not None:
            return not self._hangs and self.failure.may_pass
        return not self._hangs and ended_from_outside(self.process.returncode)

    def leave_workers(self) -> WorkerProcesses | None:
        """Returns the workers of a process that was killed or told to end, if its successor may adopt them:
        those with which it served, or which it was to adopt and were loaded before; they are no longer its
        own. To be asked after cause_of_death()."""
        if self.failure is not None or self._hangs or self.process.returncode not in (0, -signal.SIGKILL):
            return None
        kept = self._workers.kept()
        if kept is None or (self.facts is None and not self._adopts(kept)):
            return None
        left, self._workers = self._workers, WorkerProcesses()
        return left

    def _adopts(self, kept: KeptWorkers) -> bool:
        """Returns whether a process that did not serve yet was killed from outside while it adopted these: it
        has neither refused them nor started others, and no lack of memory is the cause."""
        return kept == self._to_adopt and self.was_killed_from_outside

    def close(self) -> None:
        """Kills the process, if it still runs, with all that it started, and closes the pipe."""
        self._end()
        self._workers.close()
        os.close(self.status)
        self._orders.close()

    def _end(self) -> None:
        """Kills the whole group, also after the process has died: it may have been starting a worker."""
        if self.process.returncode is None:
            kill_group(self.process, wait=True)
