"""A restart slot: one role of the service, such as "frontend 1", filled by one process after another."""

from collections import deque
from dataclasses import dataclass

from pagewire.host.resources import available_memory
from pagewire.supervisor.child import Child
from pagewire.supervisor.worker_processes import WorkerProcesses

WINDOW_S = 60.0
"""Seconds within which deaths count together."""
MOST_EXPLAINED = 16
"""Deaths within the window that do not count: their cause is being isolated, or the system killed a process
for its memory. One request that kills the engine whenever it runs takes five or six deaths to find, three
such requests up to thirteen."""
MORE_STANDBYS = 2
"""Standbys of a role beyond --standbys, at most: one for each death within the window. Where deaths follow
one another faster than a process imports everything, the next one still finds a standby that has."""
STANDBY_MEMORY = 2 << 30
"""Bytes that must be left for a standby beyond the first one to be started: several times what it takes, as
requests will need memory as well."""
STANDBY_DELAY_S = 0.5
"""Seconds from a recovery until the next standby is started: what it imports takes the cores for seconds, and
first all streams shall have their next tokens."""
STANDBY_PAUSE_S = 10.0
"""Pause before a standby that died is replaced, unless it was killed from outside and is one of the first
within the window; and before memory is looked at again."""
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
    ) -> None:
        """max_deaths: deaths within the window after which the role is not filled again. longest_pause:
        seconds before a restart, at most. num_standbys: processes that have imported everything, and wait to
        fill the role; after deaths there are more, see MORE_STANDBYS."""
        self.name = name
        self.child: Child | None = None
        self.standbys: deque[Child] = deque()  # the oldest first, which is the first to be ready
        self.start_at = 0.0  # when the next process is due, while there is none
        self.down_since: float | None = None  # until a process is ready again
        self.last_pause = 0.0  # length of the last outage, in seconds
        self.arguments = arguments
        self._max_deaths = max_deaths
        self._longest_pause = longest_pause
        self._deaths: deque[_Death] = deque()  # within the window
        self._after_kill = False  # the last process was killed from outside
        self._kept: WorkerProcesses | None = None  # of the last process, for the next one
        self._failed_forks = 0  # since the last process that started
        self.num_standbys = num_standbys
        self._standby_at = 0.0  # when the next standby is due
        self._standby_kills: deque[float] = deque()  # when some were killed from outside

    def start(self) -> Child:
        """Fills the role: activates the standby, or starts a process. Raises OSError when the system cannot
        start one now."""
        assert self.child is None
        standby = next((each for each in self.standbys if not each.is_lost), None)
        if standby is not None:
            self.standbys.remove(standby)
            self.child = standby
            self.child.name = self.name
            self.child.activate(after_kill=self._after_kill, kept=self._kept)
        else:
            self.child = Child(self.name, self.arguments)
            self.child.activate(after_kill=self._kept is not None, kept=self._kept)
        self._failed_forks, self._kept = 0, None
        return self.child

    def close(self) -> None:
        """Ends its process, its standbys, and workers that were kept for the next process."""
        for child in (self.child, *self.standbys):
            if child is not None:
                child.close()
        self._end_kept()

    def _end_kept(self) -> None:
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    def needs_standby(self, now: float) -> bool:
        """Returns whether a standby is to be started: the process of the role is ready, and there are too
        few. They are started one after another: together they would be ready later. For one beyond the first
        there must be memory."""
        is_ready = self.child is not None and self.child.facts is not None and self.down_since is None
        if not (is_ready and now >= self._standby_at and len(self.standbys) < self._num_wanted(now)):
            return False
        if not all(each.stands_by for each in self.standbys):
            return False
        if self.standbys and available_memory() < STANDBY_MEMORY:
            self._standby_at = now + STANDBY_PAUSE_S
            return False
        return True

    def surplus_standby(self, now: float) -> Child | None:
        """Returns a standby that is not wanted any more."""
        return self.standbys[-1] if len(self.standbys) > self._num_wanted(now) else None

    def _num_wanted(self, now: float) -> int:
        if not self.num_standbys:
            return 0
        num_deaths = sum(death.time > now - WINDOW_S for death in self._deaths)
        return self.num_standbys + min(num_deaths, MORE_STANDBYS)

    @property
    def has_standby(self) -> bool:
        """Whether a standby has imported everything and waits."""
        return any(each.stands_by and not each.is_lost for each in self.standbys)

    def start_standby(self, now: float) -> Child | None:
        """Starts a standby. Returns None, and tries again later, when the system cannot start one now."""
        try:
            standby = Child(f"standby of the {self.name}", self.arguments, standby=True)
        except OSError:
            self._standby_at = now + STANDBY_PAUSE_S
            return None
        self.standbys.append(standby)
        return standby

    def drop_standby(self, standby: Child, now: float, *, killed: bool = False) -> None:
        """Closes a standby that died, or is not wanted any more; the next one is started after a pause.
        killed: from outside. As many as wait from the start are replaced at once within the window: what an
        operator does once, the kernel, where memory runs out, would do again and again."""
        standby.close()
        self.standbys.remove(standby)
        while self._standby_kills and self._standby_kills[0] <= now - WINDOW_S:
            self._standby_kills.popleft()
        if killed:
            self._standby_kills.append(now)
        at_once = killed and len(self._standby_kills) <= self.num_standbys
        self._standby_at = now + (STANDBY_DELAY_S if at_once else STANDBY_PAUSE_S)

    def postpone(self, now: float) -> float:
        """Sets the next attempt after start() has failed, and returns the pause before it in seconds. The
        role had no process that could die: this counts as no death."""
        pause = min(FIRST_PAUSE_S * 2.0**self._failed_forks, max(self._longest_pause, FIRST_PAUSE_S))
        self._failed_forks += 1
        self.start_at = now + pause
        return pause

    def recovered(self, now: float) -> float:
        """Ends an outage: the process is ready. Returns how long the outage was, in seconds."""
        assert self.down_since is not None
        self._standby_at = max(self._standby_at, now + STANDBY_DELAY_S)
        self.last_pause, self.down_since = now - self.down_since, None
        return self.last_pause

    def died(
        self, now: float, *, explained: bool = False, killed: bool = False, from_outside: bool = False
    ) -> bool:
        """Closes the process and sets the time of the next start. Returns False when there were too many
        deaths for another start to make sense.

        explained: the engine is isolating the cause, so that the next process will avoid it, or the process
        was killed. killed: it was, as the next process is told. from_outside: by SIGKILL, and not by the
        system for its memory: such deaths never end the service. A process that was not ready yet is
        replaced after a pause, all the same.
        """
        assert self.child is not None
        death = _Death(now, explained, from_outside, self.child.facts is not None)
        self._after_kill = killed
        self._end_kept()
        self._kept = self.child.leave_workers()
        self.child.close()
        self.child = None
        if self.down_since is None:
            self.down_since = now
        self._deaths.append(death)
        while self._deaths[0].time <= now - WINDOW_S:
            self._deaths.popleft()
        own = [each for each in self._deaths if not each.from_outside]
        counted = len(own) - min(sum(each.explained for each in own), MOST_EXPLAINED)
        early = sum(each.from_outside and not each.served for each in self._deaths)
        earlier = max(counted + early - 1, 0)
        pause = min(FIRST_PAUSE_S * 2.0 ** (earlier - 1), self._longest_pause) if earlier else 0.0
        self.start_at = now + pause
        return counted < self._max_deaths


def label(name: str) -> str:
    """Returns the slot's name as used in metric labels and socket names: frontend-1."""
    return name.replace(" ", "-")
