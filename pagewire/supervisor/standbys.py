"""The standbys of one command, such as `pagewire engine`, which fork its processes."""

import contextlib
from collections.abc import Sequence

from pagewire.host.standby import FLAG, Process
from pagewire.supervisor.child import Child

PAUSE_S = 10.0
"""Pause before a standby that died is replaced, unless it was killed from outside. It doubles after each that
died before it had imported everything."""
MOST_PAUSE_S = 3600.0


class Standbys:
    """So many processes of a command, one after another: the first imports, the others are forked by it.
    Times are in seconds on the caller's clock."""

    def __init__(self, name: str, count: int, arguments: list[str] | None = None, flag: str = FLAG) -> None:
        """name: of what they fork. arguments: of these; None: they are not known yet. flag: what makes the
        process a standby."""
        self.count = count
        self.arguments = arguments
        self._flag = flag
        self.children: list[Child] = []
        self._name = name
        self.due = 0.0
        """When the next one may be started."""
        self._pause = PAUSE_S

    @property
    def can_fork(self) -> bool:
        """Whether one of them can."""
        return any(each.can_fork for each in self.children)

    def fork(self, arguments: Sequence[str], stdin: int) -> tuple[Process, int]:
        """Has the first that can fork a process, see pagewire.host.standby.start(). Raises OSError where none
        can."""
        for each in self.children:
            if each.can_fork:
                with contextlib.suppress(OSError):
                    return each.fork(arguments, stdin)
        raise OSError(f"no {self._name} can be forked")

    @property
    def stand_by(self) -> bool:
        """Whether all have imported everything that there are."""
        return all(each.stands_by for each in self.children)

    def is_due(self, now: float) -> bool:
        """Returns whether another one is to be started."""
        return self.arguments is not None and len(self.children) < self.count and now >= self.due

    def start(self, now: float) -> Child | None:
        """Starts a standby. Returns None, and tries again later, when the system cannot start one now."""
        assert self.arguments is not None
        name, arguments = f"standby of the {self._name}", [*self.arguments, self._flag]
        try:
            standby = Child(name, arguments, self.fork)
        except OSError:
            self.due = now + PAUSE_S
            return None
        self.children.append(standby)
        return standby

    def drop(self, standby: Child, now: float) -> None:
        """Closes one that has died. The next one is started at once where this one was killed from outside,
        and not for a lack of memory, which would kill its successors, too."""
        self.children.remove(standby)
        if standby.was_killed_from_outside:
            self.due = now
        else:
            self.due = now + self._pause
            self._pause = PAUSE_S if standby.stands_by else min(2 * self._pause, MOST_PAUSE_S)
        standby.close()

    def close(self) -> None:
        """Ends them."""
        for child in self.children:
            child.close()
