"""A child process of the supervisor, and what it has said on its status pipe."""

import json
import os
import signal
from subprocess import Popen
from typing import Any

from pagewire import process
from pagewire.errors import StartupError

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
        if kind == "ready":
            self.facts = event
        elif kind == "failed":
            self.failure = StartupError(event["what"], event["why"], event["todo"])
        elif kind == "loading":
            self.loading = event["what"], event["fraction"]

    @property
    def is_lost(self) -> bool:
        """Whether it has ended, or says that it cannot go on."""
        return self.failure is not None or self.process.poll() is not None

    def cause_of_death(self) -> StartupError:
        """Why it is lost, as well as anybody can tell."""
        self.read_status()  # its last words may have come after its death was noticed
        if self.failure is not None:
            return self.failure
        code = self.process.returncode
        why = f"it ended with exit code {code}"
        if code < 0:
            why = f"it was killed by {signal.Signals(-code).name}"
        if code == -signal.SIGKILL:
            why += ", which is also what happens when memory runs out"
        return StartupError(f"the {self.name} is gone", why, "see the lines above, then start again")

    def close(self) -> None:
        """Ends it at once if it still lives, with all that it started."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.status)
