"""Detects processes that are alive but make no progress.

A serving process sends a heartbeat twice a second from the loop that does its work. A starting process has no
loop yet: it imports, reads files and compiles for as long as that takes, and counts as alive while it does
anything at all. Time counts as silence only while both the observer and the process could run.

No clock and no process in here: the caller passes how long it was awake since the last check.
"""

from pagewire.host.proc_stat import Vitals

LEAST_PATIENCE_S = 1.5
"""Three heartbeats."""
STARTING_PATIENCE_S = 10.0
"""Silence allowed to a starting process: no CPU time, no disk access, no event."""


class AwakeTime:
    """Measures how long a periodic observer was awake.

    An observer that was stopped, or whose machine was suspended, saw nothing of what others did in that time:
    each interval counts for at most its intended length.
    """

    def __init__(self, now: float) -> None:
        """now: seconds on any clock."""
        self._last = now

    def passed(self, now: float, pause: float) -> float:
        """Returns the seconds awake since the last call. pause: the intended interval."""
        passed, self._last = now - self._last, now
        return min(passed, pause)


class Liveness:
    """Silence of one process."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._vitals: Vitals | None = None

    def heard(self) -> None:
        """Resets the silence: the process has sent something."""
        self.silent_s = 0.0

    def hangs(self, awake_s: float, vitals: Vitals | None, patience: float, *, starts: bool) -> bool:
        """Returns True when the process was silent for too long. To be called periodically.

        awake_s: seconds that the observer was awake since the last call. vitals: current ones; None: unknown.
        patience: seconds of silence allowed to a serving process. starts: it does not serve yet.
        """
        before, self._vitals = self._vitals, vitals
        if vitals is not None and before is not None:
            if starts and (vitals.state == "D" or vitals.computes_since(before, awake_s)):
                self.silent_s = 0.0
            awake_s -= vitals.starved_s - before.starved_s
        self.silent_s += max(0.0, awake_s)
        return self.silent_s >= (max(patience, STARTING_PATIENCE_S) if starts else patience)
