"""Processes that are not made of coroutines, such as an engine core: each is a greenlet, so that one runs
while everything else stands still. The caller of resume() decides when one goes on."""

from collections.abc import Callable

from greenlet import GreenletExit, getcurrent, greenlet


class Fiber:
    """One of them."""

    def __init__(self, main: Callable[[], None]) -> None:
        """main: what it does, from the first resume() on. It calls pause() wherever it would wait."""
        self._greenlet = greenlet(main)

    @property
    def done(self) -> bool:
        """Whether it has ended."""
        return bool(self._greenlet.dead)

    def resume(self) -> None:
        """It goes on until it pauses, or ends. Raises what it raises."""
        self._greenlet.parent = getcurrent()
        self._greenlet.switch()

    def pause(self) -> None:
        """Waits for the next resume(). For itself alone. Raises GreenletExit when it is abandoned."""
        assert self._greenlet is getcurrent() and self._greenlet.parent is not None
        self._greenlet.parent.switch()

    def abandon(self) -> None:
        """Ends it, wherever it is."""
        while not self.done:
            self._greenlet.parent = getcurrent()
            self._greenlet.throw(GreenletExit)
