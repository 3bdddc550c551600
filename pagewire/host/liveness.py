"""Whether a process still lives that has not died: health is proved progress.

A process that serves beats twice a second, from the loop that does its work. One that starts has no loop
yet: it imports, reads files, compiles, for as long as that takes; so all that it has to prove is that it
does anything at all. Time counts as silence only if both were able to run: we, who look, and it.

No clock and no process in here: whoever looks says how long it was awake since the last look.
"""

from pagewire.host.proc_stat import Vitals

LEAST_PATIENCE_S = 1.5
"""Three beats."""
STARTING_PATIENCE_S = 10.0
"""What a process gets that starts, and for that long neither computes, nor reads a disk, nor says a word."""


class AwakeTime:
    """The time for which somebody who looks again and again was awake.

    Stopped, or with the lid of the whole machine closed, it has seen nothing of what the others did, and
    may blame nobody: of each pause it counts what it meant to wait, at most.
    """

    def __init__(self, now: float) -> None:
        """now: on any clock, in seconds."""
        self._last = now

    def passed(self, now: float, pause: float) -> float:
        """Seconds since the last look. pause: what was meant to lie between the two."""
        passed, self._last = now - self._last, now
        return min(passed, pause)


class Liveness:
    """Of one process."""

    def __init__(self) -> None:
        self.silent_s = 0.0
        self._vitals: Vitals | None = None

    def spoke(self) -> None:
        """It has given a sign of life."""
        self.silent_s = 0.0

    def hangs(self, awake_s: float, vitals: Vitals | None, patience: float, *, starts: bool) -> bool:
        """Whether it has been silent for longer than it may. Call it again and again.

        awake_s: since the last call. vitals: now; None: nobody knows. patience: seconds of silence, of a
        process that serves. starts: it does not serve yet.
        """
        before, self._vitals = self._vitals, vitals
        if vitals is not None and before is not None:
            if starts and (vitals.state == "D" or vitals.computes_since(before, awake_s)):
                self.silent_s = 0.0
            awake_s -= vitals.starved_s - before.starved_s
        self.silent_s += max(0.0, awake_s)
        return self.silent_s >= (max(patience, STARTING_PATIENCE_S) if starts else patience)
