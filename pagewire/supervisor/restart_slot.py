"""A restart slot: one role of the service, such as "frontend 1", filled by one process after another."""

from collections import deque

from pagewire.supervisor.child import Child

WINDOW_S = 60.0
"""Seconds within which deaths count together."""
MOST_EXPLAINED = 16
"""Deaths within the window that do not count: their cause is being isolated, or a process was killed from
outside. One request that kills the engine whenever it runs takes five deaths to find, three such requests
twelve."""
STANDBY_PAUSE_S = 10.0
"""Pause before a standby that died is replaced."""
FIRST_PAUSE_S = 0.5
"""Pause before the second restart within a window. The first has none; each later one is twice as long."""


class RestartSlot:
    """One role of the service and its current process. Times are in seconds on the caller's clock."""

    def __init__(
        self,
        name: str,
        arguments: list[str],
        max_deaths: int,
        longest_pause: float,
        *,
        keeps_standby: bool = False,
    ) -> None:
        """max_deaths: deaths within the window after which the role is not filled again. longest_pause:
        seconds before a restart, at most. keeps_standby: a second process, which has imported everything,
        waits to fill the role."""
        self.name = name
        self.child: Child | None = None
        self.standby: Child | None = None
        self.start_at = 0.0  # when the next process is due, while there is none
        self.down_since: float | None = None  # until a process is ready again
        self.last_pause = 0.0  # length of the last outage, in seconds
        self.arguments = arguments
        self._max_deaths = max_deaths
        self._longest_pause = longest_pause
        self._deaths: deque[tuple[float, bool]] = deque()  # (time, whether it counts as explained)
        self._failed_forks = 0  # since the last process that started
        self.keeps_standby = keeps_standby
        self._standby_at = 0.0  # when the next standby is due

    def start(self) -> Child:
        """Fills the role: activates the standby, or starts a process. Raises OSError when the system cannot
        start one now."""
        assert self.child is None
        if self.standby is not None and not self.standby.is_lost:
            self.child, self.standby = self.standby, None
            self.child.name = self.name
            self.child.activate()
        else:
            self.child = Child(self.name, self.arguments)
        self._failed_forks = 0
        return self.child

    def needs_standby(self, now: float) -> bool:
        """Returns whether a standby is to be started: the process of the role is ready, and there is none."""
        is_ready = self.child is not None and self.child.facts is not None
        return self.keeps_standby and is_ready and self.standby is None and now >= self._standby_at

    @property
    def has_standby(self) -> bool:
        """Whether a standby has imported everything and waits."""
        return self.standby is not None and self.standby.stands_by and not self.standby.is_lost

    def start_standby(self, now: float) -> Child | None:
        """Starts a standby. Returns None, and tries again later, when the system cannot start one now."""
        try:
            self.standby = Child(f"standby of the {self.name}", self.arguments, standby=True)
        except OSError:
            self._standby_at = now + STANDBY_PAUSE_S
        return self.standby

    def drop_standby(self, now: float) -> None:
        """Closes a standby that died; the next one is started after a pause."""
        assert self.standby is not None
        self.standby.close()
        self.standby, self._standby_at = None, now + STANDBY_PAUSE_S

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
        self.last_pause, self.down_since = now - self.down_since, None
        return self.last_pause

    def died(self, now: float, *, explained: bool = False) -> bool:
        """Closes the process and sets the time of the next start. Returns False when there were too many
        deaths for another start to make sense.

        explained: the engine is isolating the cause, so that the next process will avoid it, or the process
        was killed from outside.
        """
        assert self.child is not None
        self.child.close()
        self.child = None
        if self.down_since is None:
            self.down_since = now
        self._deaths.append((now, explained))
        while self._deaths[0][0] <= now - WINDOW_S:
            self._deaths.popleft()
        num_explained = sum(is_explained for _, is_explained in self._deaths)
        counted = len(self._deaths) - min(num_explained, MOST_EXPLAINED)
        earlier = max(counted - 1, 0)
        pause = min(FIRST_PAUSE_S * 2.0 ** (earlier - 1), self._longest_pause) if earlier else 0.0
        self.start_at = now + pause
        return counted < self._max_deaths


def label(name: str) -> str:
    """Returns the slot's name as used in metric labels and socket names: frontend-1."""
    return name.replace(" ", "-")
