"""A child process of the supervisor, and what it has said on its status pipe."""

import json
import os
import signal
from subprocess import Popen
from typing import Any

from pagewire.errors import StartupError
from pagewire.host import spawn as process
from pagewire.host.liveness import Liveness
from pagewire.host.proc_stat import read_vitals

Facts = dict[str, str | int | float]


class Child:
    """A process of ours: `python -m pagewire ARGUMENTS`."""

    def __init__(self, name: str, arguments: list[str]) -> None:
        self.name = name
        self.facts: Facts | None = None
        self.failure: StartupError | None = None
        self.loading: tuple[str, float] | None = None
        # A process group of its own: Ctrl-C reaches us alone, and SIGKILL reaches its children too.
        self.process: Popen[bytes]
        self.process, self.status = process.spawn(arguments, process_group=0)
        os.set_blocking(self.status, False)
        self._unread = b""
        self._liveness = Liveness()
        self._hangs = False

    def read_status(self) -> bool:
        """Takes in what the pipe holds. False at its end."""
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
        self._liveness.spoke()
        if kind == "ready":
            self.facts = event
        elif kind == "failed":
            may_pass = event["may_pass"]
            self.failure = StartupError(event["what"], event["why"], event["todo"], may_pass=may_pass)
        elif kind == "loading":
            self.loading = event["what"], event["fraction"]

    def look(self, awake_s: float, patience: float) -> None:
        """Whether it still does something; see pagewire.host.liveness. One that hangs is killed, with all
        that it started: it must not wake up and go on beside its successor."""
        if self.is_lost:
            return
        vitals, starts = read_vitals(self.process.pid), self.facts is None
        if self._liveness.hangs(awake_s, vitals, patience, starts=starts):
            self._hangs = True
            self._end()

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, or says that it cannot go on, or hangs."""
        return self.failure is not None or self._has_ended

    @property
    def _has_ended(self) -> bool:
        """While nobody has waited for it, its number, which is its group's too, is not given to others."""
        if self.process.returncode is not None:
            return True
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self.process.pid, flags) is not None

    def cause_of_death(self) -> StartupError:
        """Why it is lost, as well as anybody can tell."""
        self.read_status()  # its last words may have come after its death was noticed
        if self.failure is not None:
            return self.failure
        if self._hangs:
            why = f"it has given no sign of life for {self._liveness.silent_s:.1f} s, and was killed"
            todo = "see the lines above; if it was only slow, raise --hang-timeout"
            return StartupError(f"the {self.name} hangs", why, todo)
        self._end()
        code = self.process.returncode
        why = f"it ended with exit code {code}"
        if code < 0:
            why = f"it was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", which is also what happens when memory runs out"
        return StartupError(f"the {self.name} is gone", why, "see the lines above, then start again")

    def close(self) -> None:
        """Ends it at once if it still lives, with all that it started."""
        self._end()
        os.close(self.status)

    def _end(self) -> None:
        """Its group too, also when it has died before: a worker that was just being started, say."""
        if self.process.returncode is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
