"""What all processes of a simulation share: time, its trace, and the end."""

from collections.abc import Callable

from engine_core.events import Inbox
from engine_core.stop import Stopped
from tests.simulation.clock import VirtualLoop
from tests.simulation.trace import Trace

MAX_EVENTS = 400_000
"""Of one simulation; the longest have a tenth of that. More means that something never ends."""

MAX_SILENCE_S = 200.0
"""Without a word to any client while the core has nothing to do: longer than everybody's patience."""


class Killed(BaseException):
    """The core's process is gone, wherever it was."""


class Machine:
    """The core waits here for time to pass; everything else happens meanwhile."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        """is_over: whether an idle core may end."""
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time)
        self.core_is_killed = False
        self.last_progress = 0.0  # when a client heard something
        self._is_over = is_over

    def wait(self, until: float) -> None:
        """The core waits until then. Raises Killed."""
        self._run(until, lambda: False)

    def wait_for_events(self, inbox: Inbox) -> None:
        """The core waits until there is something in its inbox. Raises Killed, or Stopped at the end."""
        silence = self.loop.time() - self.last_progress
        assert silence < MAX_SILENCE_S, "clients wait for what nobody will do"
        self._run(float("inf"), lambda: bool(inbox) or self._is_over())
        if not inbox:
            raise Stopped

    def _run(self, until: float, wake: Callable[[], bool]) -> None:
        self.loop.run(until, lambda: self.core_is_killed or wake())
        assert self.loop.num_events < MAX_EVENTS, "no end is in sight"
        if self.core_is_killed:
            raise Killed
