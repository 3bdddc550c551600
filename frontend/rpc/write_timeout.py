"""Messages on their way to clients that may not take them.

gRPC holds a message back as long as its client's window is full: that is how a slow reader slows down
nobody but itself. One that takes nothing for too long is ended. No message has a timer of its own: one task
looks at all of them now and then.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any, Protocol

from frontend.errors import SlowConsumer

_LOOKS = 4
"""Per timeout."""


class Writable(Protocol):
    """What of a call matters here: grpc.aio.ServicerContext has it."""

    async def send_initial_metadata(self, metadata: Any) -> None:
        """Sends the headers; they need no room."""

    async def write(self, message: Any) -> None:
        """Returns when the message is on its way."""


class Delivery:
    """The messages of one call, which its handler writes one after another."""

    __slots__ = ("since", "_begun", "_call", "_clock", "_handler", "_stalled")

    def __init__(self, call: Writable, clock: Callable[[], float]) -> None:
        handler = asyncio.current_task()
        assert handler is not None
        self.since: float | None = None  # when the message was written that is on its way
        self._begun = False
        self._call = call
        self._clock = clock
        self._handler = handler
        self._stalled = False

    async def write(self, message: Any) -> None:
        """Returns when the client has room for the next one. Raises SlowConsumer."""
        if not self._begun:
            # gRPC would send headers with the first message, and could send no status while that waits.
            self._begun = True
            await self._call.send_initial_metadata(())
        self.since = self._clock()
        try:
            await self._call.write(message)
        except asyncio.CancelledError:
            if self._stalled and not self._handler.uncancel():
                raise SlowConsumer from None
            raise  # the client is gone
        finally:
            self.since = None

    def stall(self) -> None:
        """The message is given up."""
        self._stalled = True
        self._handler.cancel()


class Deliveries:
    """All calls that are being written to."""

    def __init__(self, timeout: float, clock: Callable[[], float] = monotonic) -> None:
        """timeout: seconds that a client may take for a message; 0: as long as it likes."""
        self._timeout = timeout
        self._clock = clock
        self._open: dict[Delivery, None] = {}
        self._watching: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    @contextmanager
    def to(self, call: Writable) -> Iterator[Delivery]:
        """Where the current task, which handles the call, writes within the block."""
        delivery = Delivery(call, self._clock)
        self._open[delivery] = None
        try:
            yield delivery
        finally:
            del self._open[delivery]

    def give_up(self) -> None:
        """Ends what has been on its way for too long."""
        latest = self._clock() - self._timeout
        for delivery in self._open:
            if delivery.since is not None and delivery.since <= latest:
                delivery.stall()

    def start(self) -> None:
        """From here on it gives up by itself."""
        if self._timeout:
            self._watching = asyncio.create_task(self._watch(), name="deliveries")

    async def stop(self) -> None:
        """The opposite. Idempotent."""
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait([self._watching])
            self._watching = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._timeout / _LOOKS)
            self.give_up()
