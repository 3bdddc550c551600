"""Ends calls whose client takes no message for too long.

A transport with flow control holds a message back while its client's window is full, so a slow reader slows
down only itself. A client that takes nothing for `timeout` seconds is disconnected. Messages have no timers
of their own: one task checks all of them a few times per timeout.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

from frontend.errors import SlowConsumer

_CHECKS_PER_TIMEOUT = 4

Send = Callable[[Any], Awaitable[None]]
"""Sends a message; returns when the transport has room for the next one."""


class TimedWriter:
    """Writes the messages of one call, one after another, from the task that serves it."""

    __slots__ = ("since", "_clock", "_send", "_stalled", "_task")

    def __init__(self, send: Send, clock: Callable[[], float]) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.since: float | None = None
        """When the message that is being written was handed to the transport; None: there is none."""
        self._send = send
        self._clock = clock
        self._task = task
        self._stalled = False

    async def write(self, message: Any) -> None:
        """Returns when the client has room for the next message. Raises SlowConsumer."""
        self.since = self._clock()
        try:
            await self._send(message)
        except asyncio.CancelledError:
            if self._stalled and not self._task.uncancel():
                raise SlowConsumer from None
            raise  # the client is gone
        finally:
            self.since = None

    def stall(self) -> None:
        """Gives up the message that is being written."""
        self._stalled = True
        self._task.cancel()


class WriteTimeouts:
    """The writers of all calls that are being answered."""

    def __init__(self, timeout: float, clock: Callable[[], float] = monotonic) -> None:
        """timeout: seconds that a client may take per message; 0: no limit."""
        self._timeout = timeout
        self._clock = clock
        self._writers: dict[TimedWriter, None] = {}
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._writers)

    def __iter__(self) -> Iterator[TimedWriter]:
        return iter(self._writers)

    @contextmanager
    def writer(self, send: Send) -> Iterator[TimedWriter]:
        """Yields the writer for the call that the current task serves."""
        writer = TimedWriter(send, self._clock)
        self._writers[writer] = None
        try:
            yield writer
        finally:
            del self._writers[writer]

    def give_up(self) -> None:
        """Ends every write that has taken longer than the timeout."""
        latest = self._clock() - self._timeout
        for writer in self._writers:
            if writer.since is not None and writer.since <= latest:
                writer.stall()

    def start(self) -> None:
        """Starts the task that checks for timeouts."""
        if self._timeout:
            self._watching = asyncio.create_task(self._watch(), name="write timeouts")

    async def stop(self) -> None:
        """Stops that task. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._timeout / _CHECKS_PER_TIMEOUT)
            self.give_up()
