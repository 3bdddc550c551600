"""Processes that are not made of coroutines, such as an engine core: each is a thread, and at most one of
them runs, while everything else stands still. The caller of resume() decides when one goes on."""

import threading
from collections.abc import Callable


class Abandoned(BaseException):
    """The simulation is over; this process is not waited for."""


class Fiber:
    """One of them."""

    def __init__(self, main: Callable[[], None]) -> None:
        """main: what it does, from the first resume() on. It calls pause() wherever it would wait."""
        self.done = False
        self._main = main
        self._error: BaseException | None = None
        self._is_abandoned = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def resume(self) -> None:
        """It goes on until it pauses, or ends. Raises what it raises. Not for its own thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._go.release()
        self._back.acquire()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def pause(self) -> None:
        """Waits for the next resume(). For its own thread alone. Raises Abandoned."""
        self._back.release()
        self._go.acquire()
        if self._is_abandoned:
            raise Abandoned

    def abandon(self) -> None:
        """Ends it, wherever it is."""
        self._is_abandoned = True
        if self._thread is not None:
            while not self.done:
                self.resume()
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            self._main()
        except Abandoned:
            pass
        except BaseException as error:
            self._error = error
        self.done = True
        self._back.release()
