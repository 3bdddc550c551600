"""A restart slot: one role of the service, such as "frontend 1", filled by one process after another."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from pagewire.host.standby import Process
from pagewire.supervisor.child import Child
from pagewire.supervisor.standbys import Standbys
from pagewire.supervisor.worker_processes import WorkerProcesses

WINDOW_S = 60.0
"""Seconds within which deaths count together."""
MOST_EXPLAINED = 16
"""Deaths within the window that do not count: their cause is being isolated, or the system killed a process
for its memory. One request that kills the engine whenever it runs takes five or six deaths to find, three
such requests up to thirteen."""
FIRST_PAUSE_S = 0.5
"""Pause before the second restart within a window. The first has none; each later one is twice as long."""


@dataclass(frozen=True)
class _Death:
    time: float
    explained: bool
    from_outside: bool
    served: bool  # it was ready before


class RestartSlot:
    """One role of the service and its current process. Times are in seconds on the caller's clock."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        max_deaths: int,
        longest_pause: float,
        *,
        num_standbys: int = 0,
        worker_standby: str = "",
    ) -> None:
        """max_deaths: deaths within the window after which the role is not filled again. longest_pause:
        seconds before a restart, at most. num_standbys: processes that have imported everything, and fork
        what fills the role. worker_standby: the flag of such processes for its worker; "": it has none."""
        self.name = name
        self.child: Child | None = None
        self.start_at = 0.0  # when the next process is due, while there is none
        self.down_since: float | None = None  # until a process is ready again
        self._died_again = False  # a process that was to end the outage
        self.last_pause = 0.0  # length of the last outage, in seconds
        self.arguments = arguments
        self._max_deaths = max_deaths
        self._longest_pause = longest_pause
        self._deaths: deque[_Death] = deque()  # within the window
        self._after_kill = False  # the last process that served was killed from outside
        self._kept: WorkerProcesses | None = None  # of the last process, for the next one
        self._has_served = False  # any process of the role, since the start
        self._failed_starts = 0  # since the last process that started
        self._own = Standbys(name, num_standbys, arguments)
        count = num_standbys if worker_standby else 0
        self._of_worker = Standbys(f"worker of the {name}", count, flag=worker_standby)
        self.standbys = tuple(each for each in (self._own, self._of_worker) if each.count)
        """Those of its process, and of the worker of that."""

    def start(self) -> Child:
        """Fills the role: a standby forks the process, or it is started. Raises OSError when the system
        cannot start one now."""
        assert self.child is None
        self.child = Child(self.name, self.arguments, self._own.fork, self._fork_worker)
        self.child.activate(after_kill=self._after_kill, kept=self._kept)
        self._failed_starts, self._kept = 0, None
        return self.child

    def _fork_worker(self, arguments: Sequence[str], stdin: int) -> tuple[Process, int]:
        self._of_worker.arguments = list(arguments)
        return self._of_worker.fork(arguments, stdin)

    def close(self) -> None:
        """Ends its process, its standbys, and workers that were kept for the next process."""
        if self.child is not None:
            self.child.close()
        for standbys in self.standbys:
            standbys.close()
        self._end_kept()

    def _end_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    @property
    def has_standby(self) -> bool:
        """Whether all standbys that it needs can fork."""
        return bool(self.standbys) and all(each.can_fork for each in self.standbys)

    def due_standbys(self, now: float) -> Standbys | None:
        """Returns those of which another one is to be started: the role was filled once, and no standby
        imports. They are started one after another: together they would be ready later. In an outage the
        first process that starts has the cores for its imports; where it is killed, standbys live on."""
        self._has_served |= self.child is not None and self.child.facts is not None
        if not self._has_served or not all(each.stand_by for each in self.standbys):
            return None
        imports = self.down_since is None or self._died_again
        return next((each for each in self.standbys if (imports or each.can_fork) and each.is_due(now)), None)

    def postpone(self, now: float) -> float:
        """Sets the next attempt after start() has failed, and returns the pause before it in seconds. The
        role had no process that could die: this counts as no death."""
        pause = min(FIRST_PAUSE_S * 2.0**self._failed_starts, max(self._longest_pause, FIRST_PAUSE_S))
        self._failed_starts += 1
        self.start_at = now + pause
        return pause

    def recovered(self, now: float) -> float:
        """Ends an outage: the process is ready. Returns how long the outage was, in seconds."""
        assert self.down_since is not None
        self.last_pause, self.down_since = now - self.down_since, None
        return self.last_pause

    def died(
        self, now: float, *, explained: bool = False, killed: bool = False, from_outside: bool = False
    ) -> bool:
        """Closes the process and sets the time of the next start. Returns False when there were too many
        deaths for another start to make sense.

        explained: the engine is isolating the cause, so that the next process will avoid it, or the process
        was killed. killed: it was after it had served, as the next processes are told until one serves: the
        crash journal that they find is that of this one. from_outside: by another process, and not by
        the system for its memory: such deaths never end the service, and do not make pauses longer. A
        process that was not ready yet is replaced after a short one, all the same.
        """
        assert self.child is not None
        death = _Death(now, explained, from_outside, self.child.facts is not None)
        self._after_kill = killed or (self._after_kill and not death.served)
        self._end_kept()
        self._kept = self.child.leave_workers()
        self.child.close()
        self.child = None
        self._died_again = self.down_since is not None
        self.down_since = now if self.down_since is None else self.down_since
        self._deaths.append(death)
        while self._deaths[0].time <= now - WINDOW_S:
            self._deaths.popleft()
        own = [each for each in self._deaths if not each.from_outside]
        counted = len(own) - min(sum(each.explained for each in own), MOST_EXPLAINED)
        early = sum(each.from_outside and not each.served for each in self._deaths)
        pause = FIRST_PAUSE_S * 2.0 ** (counted - 2) if counted > 1 else FIRST_PAUSE_S * (counted + early > 1)
        self.start_at = now + min(pause, self._longest_pause)
        return counted < self._max_deaths


def label(name: str) -> str:
    """Returns the slot's name as used in metric labels and socket names: frontend-1."""
    return name.replace(" ", "-")
