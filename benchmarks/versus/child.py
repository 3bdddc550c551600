"""A peer as a process: started with its settings, asked for runs, ended with all that it has started."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.service.processes import kill_session, last_line
from benchmarks.versus.peers.harness import Settings
from pagewire_bench.workloads import Request

START_S = 1200.0
"""To load, and for some to compile, as vLLM does for minutes where there are two cores."""
STOP_S = 20.0


class PeerFailed(Exception):
    """It ended, or did not answer in time, or answered with too few tokens. One line."""


@dataclass(frozen=True)
class Answer:
    """Of one run; times in seconds since the requests were handed over."""

    seconds: float
    sent: list[float]
    arrivals: list[list[tuple[float, int]]]


class Child:
    """A peer that has loaded its model. Every wait for it has a time limit."""

    def __init__(
        self, command: Sequence[str], settings: Settings, environment: Mapping[str, str], log: Path
    ) -> None:
        """log: for what it prints. Raises PeerFailed."""
        self._log, self._has_expired = log, False
        with log.open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, json.dumps(asdict(settings))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=dict(environment),
                text=True,
                start_new_session=True,
            )
        try:
            self.versions: dict[str, str] = self._read(START_S)["versions"]
        except BaseException:  # also SystemExit, of a signal while the peer loads
            self.close()
            raise

    @property
    def pid(self) -> int:
        """Of the process; what it has started is below it."""
        return self._process.pid

    def run(self, requests: Sequence[Request], patience_s: float) -> Answer:
        """All of them at once. Raises PeerFailed."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # reading says more
            self._process.stdin.write(json.dumps([asdict(request) for request in requests]) + "\n")
            self._process.stdin.flush()
        answer = Answer(**self._read(patience_s))
        for request, arrivals in zip(requests, answer.arrivals, strict=True):
            tokens = sum(count for _, count in arrivals)
            if tokens != request.output:
                raise PeerFailed(f"asked for {request.output} tokens, got {tokens}")
        return answer

    def close(self) -> None:
        """Ends it, kindly at first; idempotent."""
        assert self._process.stdin is not None and self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        kill_session(self._process)
        self._process.stdout.close()

    def _read(self, patience_s: float) -> Any:
        """The next line of its answers."""
        assert self._process.stdout is not None
        timer = threading.Timer(patience_s, self._expire)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:  # also when a signal ends this process, which would wait for the timer
            timer.cancel()
        if line:
            return json.loads(line)
        ended = f"ended with {self._process.wait()}"
        why = f"was killed after {patience_s:.0f} s without an answer" if self._has_expired else ended
        raise PeerFailed(f"it {why}: {last_line(self._log)} ({self._log})")

    def _expire(self) -> None:
        self._has_expired = True
        kill_session(self._process)
