"""What all processes of a simulation share: time, its trace, and the end."""

from collections.abc import Callable

from tests.simulation.clock import VirtualLoop
from tests.simulation.fibers import Fiber
from tests.simulation.trace import Trace

MAX_EVENTS = 400_000
"""Of one simulation; the longest have a tenth of that. More means that something never ends."""

MAX_SILENCE_S = 200.0
"""Without a word to any client while the core has nothing to do: longer than any timeout."""


class Killed(BaseException):
    """The process is gone, wherever it was."""


class Processor:
    """Where an engine core or a worker runs: it waits here for time to pass, and everything else happens
    meanwhile."""

    def __init__(self, machine: "Machine", main: Callable[[], None]) -> None:
        self.loop, self.trace = machine.loop, machine.trace
        self.is_killed = False
        self.until = 0.0  # when it wants to go on
        self.fiber = Fiber(main)
        self._machine = machine
        self._wakes: Callable[[], bool] = lambda: False

    @property
    def is_due(self) -> bool:
        """Whether it goes on now, by the clock or not."""
        return self.is_killed or self.until <= self.loop.time() or self._wakes()

    @property
    def is_over(self) -> bool:
        """Whether an idle core may end."""
        return self._machine.is_over()

    def check_silence(self) -> None:
        """Raises AssertionError when clients wait for what will never happen; for a core that is idle."""
        silence = self.loop.time() - self._machine.last_progress
        assert silence < MAX_SILENCE_S, "clients wait for what will never happen"

    def wait(self, until: float, wakes: Callable[[], bool] = lambda: False) -> None:
        """The process waits until then, or until wakes() is true. Raises Killed."""
        self.until, self._wakes = until, wakes
        self.fiber.pause()
        if self.is_killed:
            raise Killed


class Machine:
    """Time, and what goes on when it has come."""

    def __init__(self, is_over: Callable[[], bool]) -> None:
        """is_over: whether an idle core may end."""
        self.loop = VirtualLoop()
        self.trace = Trace(self.loop.time)
        self.last_progress = 0.0  # when a client heard something
        self.num_worker_deaths = 0
        self.is_over = is_over
        self._processors: list[Processor] = []

    def processor(self, main: Callable[[], None]) -> Processor:
        """For one more process. main: its whole life."""
        self._processors.append(Processor(self, main))
        return self._processors[-1]

    def run(self) -> None:
        """Until all processes have ended. Raises what one of them raises."""
        while alive := [one for one in self._processors if not one.fiber.done]:
            self._processors = alive
            until = min(one.until for one in alive)
            self.loop.run(until, lambda alive=alive: any(one.is_due for one in alive))  # type: ignore[misc]
            assert self.loop.num_events < MAX_EVENTS, "no end is in sight"
            for one in list(alive):  # one may start another
                if one.is_due:
                    one.fiber.resume()

    def abandon(self) -> None:
        """Ends what has not ended."""
        for one in self._processors:
            one.fiber.abandon()
