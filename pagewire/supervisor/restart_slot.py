"""A post: a place in the service that one process after another fills."""

from collections import deque

from pagewire.supervisor.child import Child

WINDOW_S = 60.0
"""Deaths within so many seconds count together."""
MOST_EXPLAINED = 16
"""Deaths within the window that do not count, as it is being found out what causes them. One request that
kills the engine whenever it runs takes five, three of them twelve."""
FIRST_PAUSE_S = 0.5
"""Before the second start within a window; the first is at once, each later one after twice the time."""


class Post:
    """One of the service's places. Times are in seconds on the caller's clock."""

    def __init__(self, name: str, arguments: list[str], max_deaths: int, longest_pause: float) -> None:
        """max_deaths: within the window; with so many of them nobody takes the place again.
        longest_pause: before a start, in seconds."""
        self.name = name
        self.child: Child | None = None
        self.start_at = 0.0  # for an empty place
        self.empty_since: float | None = None  # until somebody there is ready again
        self.last_pause = 0.0  # how long that was the last time, in seconds
        self.arguments = arguments
        self._max_deaths = max_deaths
        self._longest_pause = longest_pause
        self._deaths: deque[tuple[float, bool]] = deque()  # when, and whether it is being explained

    def fill(self) -> Child:
        """Starts a process."""
        assert self.child is None
        self.child = Child(self.name, self.arguments)
        return self.child

    def taken(self, now: float) -> float:
        """Somebody is ready there again. Returns for how long nobody was."""
        assert self.empty_since is not None
        self.last_pause, self.empty_since = now - self.empty_since, None
        return self.last_pause

    def empty(self, now: float, *, explained: bool = False) -> bool:
        """Its process has died. False when it dies so often that another one would not help.

        explained: its successor will know better than to do the same again.
        """
        assert self.child is not None
        self.child.close()
        self.child = None
        if self.empty_since is None:
            self.empty_since = now
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
    """Of a post, in labels, and in the name of its socket: frontend-1."""
    return name.replace(" ", "-")
