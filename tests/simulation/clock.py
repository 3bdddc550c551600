"""An event loop whose time is a number: it jumps to the next event, so that waiting costs nothing.

The caller of run() is the one process that is not made of coroutines: the engine core. While it waits (for
a step's result, for a message) everything else in the simulation happens, in the order of time and, at one
moment, in the order in which it was asked for. The same calls give the same order, in every process.
"""

import asyncio
import contextlib
import heapq
import time
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context
from itertools import count
from typing import Any
from unittest import mock

EPOCH_S = 1_700_000_000
"""What time.time() says when a simulation begins."""


class Handle:
    """One thing that will happen, unless it is cancelled."""

    __slots__ = ("_when", "_callback", "_args", "_context")

    def __init__(
        self, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self._when = when
        self._callback: Callable[..., object] | None = callback
        self._args, self._context = args, context

    def when(self) -> float:
        """On the loop's clock."""
        return self._when

    def cancel(self) -> None:
        """It will not happen."""
        self._callback, self._args = None, ()

    def cancelled(self) -> bool:
        """Whether it will not."""
        return self._callback is None

    def run(self) -> bool:
        """It happens now. False: it was cancelled."""
        if self._callback is None:
            return False
        if self._context is None:
            self._callback(*self._args)
        else:
            self._context.run(self._callback, *self._args)
        return True


class VirtualLoop(asyncio.AbstractEventLoop):
    """As much of an event loop as our code uses: callbacks, timers, tasks; no sockets, no threads.

    What a callback raises ends run(): nothing that goes wrong goes on unseen.
    """

    def __init__(self) -> None:
        self.num_events = 0
        self.errors: list[dict[str, Any]] = []
        """What asyncio itself complained of, such as exceptions that were never retrieved."""
        self._now = 0.0
        self._ready: deque[Handle] = deque()
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = count()
        self._tasks: weakref.WeakSet[asyncio.Task[Any]] = weakref.WeakSet()

    def run(self, until: float, wake: Callable[[], bool]) -> None:
        """Lets happen what does up to a point in time. Returns then, or as soon as wake() is true."""
        asyncio._set_running_loop(self)
        try:
            while not wake():
                if self._ready:
                    self.num_events += self._ready.popleft().run()
                elif self._timers and self._timers[0][0] <= until:
                    when, _, handle = heapq.heappop(self._timers)
                    if not handle.cancelled():
                        self._now = max(self._now, when)
                        self.num_events += handle.run()
                else:
                    assert until < float("inf"), "nothing will ever happen"
                    self._now = max(self._now, until)
                    return
        finally:
            asyncio._set_running_loop(None)

    def abandon(self) -> None:
        """Ends what is left of a simulation that failed, so that asyncio does not complain of it later."""
        self._timers.clear()
        self._ready.clear()
        for _ in range(100):  # a task may have to be told more than once, and one waits for another
            for task in list(self._tasks):
                if not task.done():
                    task.cancel()
            with contextlib.suppress(Exception):
                self.run(self._now, lambda: False)

    # What asyncio and our code ask for.

    def time(self) -> float:
        """Seconds since the simulation began."""
        return self._now

    def call_soon(  # type: ignore[override]  # a duck of its own instead of asyncio.Handle
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(self._now, callback, args, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Handle:
        handle = Handle(when, callback, args, context)
        heapq.heappush(self._timers, (when, next(self._numbers), handle))
        return handle

    def create_future(self) -> "asyncio.Future[Any]":
        return asyncio.Future(loop=self)

    def create_task(  # type: ignore[override]
        self, coro: Coroutine[Any, Any, Any], *, name: str | None = None, context: Context | None = None
    ) -> "asyncio.Task[Any]":
        task = asyncio.Task(coro, loop=self, name=name, context=context)
        self._tasks.add(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        self.errors.append(context)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False


@contextmanager
def virtual_time(loop: VirtualLoop) -> Iterator[None]:
    """Code that asks the `time` module is told the loop's time; code that sleeps there is found."""

    def sleep(seconds: float) -> None:
        raise AssertionError(f"a blocking sleep of {seconds} s in a simulation")

    def nanoseconds() -> int:
        return round(1e9 * loop.time())

    clocks: dict[str, Callable[..., object]] = {
        "monotonic": loop.time,
        "perf_counter": loop.time,
        "time": lambda: EPOCH_S + loop.time(),
        "monotonic_ns": nanoseconds,
        "perf_counter_ns": nanoseconds,
        "time_ns": lambda: EPOCH_S * 10**9 + nanoseconds(),
        "sleep": sleep,
    }
    with mock.patch.multiple(time, **clocks):
        yield
