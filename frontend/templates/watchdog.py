"""A limit of processor time for Python code that cannot be asked to stop, such as a chat template's loop.

CPython can raise an exception in another thread (PyThreadState_SetAsyncExc). It is delivered between two
bytecodes, so a single long call into C is not interrupted: those are bounded by size (see
frontend.templates.jinja_sandbox).
"""

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

AGAIN_AFTER = 0.25
"""Seconds after which late code that still runs is interrupted again: a finalizer or the callback of a weak
reference, where the exception may arrive, swallows it."""


class TimeLimitExceeded(BaseException):
    """Raised inside the late code. Not an Exception, so that no handler on the way swallows it."""


@dataclass(slots=True, eq=False)
class _Watch:
    thread: int
    clock: int  # of the thread's processor time
    end: float  # by that clock
    deadline: float  # when to look at it, by time.monotonic()
    fired: bool = False


class Watchdog:
    """Runs functions under a time limit; one thread watches all of them, from the first call on."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._watches: set[_Watch] = set()
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], T], seconds: float) -> T:
        """Returns function(). Raises TimeoutError when it takes more than `seconds` of processor time.

        A thread that waits for a core is not late.
        """
        thread = threading.get_ident()
        clock = time.pthread_getcpuclockid(thread)
        end, deadline = time.clock_gettime(clock) + seconds, time.monotonic() + seconds
        watch = _Watch(thread, clock, end, deadline)
        try:
            try:
                self._arm(watch)
                return function()
            finally:
                self._disarm(watch)
        except TimeLimitExceeded:
            self._disarm_interrupted(watch)
            raise TimeoutError from None

    def _disarm_interrupted(self, watch: _Watch) -> None:
        """Disarms where the exception may have arrived in _disarm(), and may arrive again."""
        while True:
            try:
                self._release()
                self._disarm(watch)
                return
            except TimeLimitExceeded:
                continue

    def _arm(self, watch: _Watch) -> None:
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
                self._thread.start()
            self._watches.add(watch)
            self._changed.notify()

    def _disarm(self, watch: _Watch) -> None:
        with self._changed:
            self._watches.discard(watch)
            if watch.fired:  # a pending exception must not hit the code that follows
                _raise_in(watch.thread, None)

    def _release(self) -> None:
        """Releases the lock where the exception arrived between its acquisition and the block it guards."""
        try:
            while True:
                self._lock.release()
        except RuntimeError:  # not held by this thread
            return

    def _watch(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                for watch in [watch for watch in self._watches if watch.deadline <= now]:
                    left = watch.end - time.clock_gettime(watch.clock)
                    if left <= 0:
                        watch.fired = True
                        _raise_in(watch.thread, TimeLimitExceeded)
                    watch.deadline = now + (left if left > 0 else AGAIN_AFTER)
                pause = min((watch.deadline - now for watch in self._watches), default=None)
                self._changed.wait(pause)


def _raise_in(thread: int, exception: type[BaseException] | None) -> None:
    """Makes a thread raise `exception` at its next bytecode; None: cancels a pending exception."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread), ctypes.py_object(exception) if exception is not None else None
    )
