"""Streams of tei.v1: each message is a request, and the answers have the order of the messages.

One task reads the client's messages, from the first to the end of the stream, and has ended before the call
does: gRPC frees a call that is over, also while something reads from it.
"""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, aclosing
from typing import Any, Generic, TypeVar

from frontend.call.call import Call
from frontend.errors import Draining
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, reauthenticated_call, sender
from frontend.streams.pooling import most_at_once

Message = TypeVar("Message")
T = TypeVar("T")
Answer = Callable[[Message, Call], Awaitable[T]]
"""Returns the answer to a message; raises ServiceError."""


class OrderedStream(Generic[Message, T]):
    """The requests of one stream. They run side by side; while there are any, they hold one slot together, as
    the inputs of one call do. The first error ends the stream, behind the answers before it."""

    def __init__(self, parts: FrontendParts, answer: Answer[Message, T]) -> None:
        self._state, self._limits, self._write_timeouts = parts.state, parts.limits, parts.write_timeouts
        most = min(most_at_once(parts.engine.facts), parts.config.max_multiplexed_requests)
        self._answer = answer
        self._room = asyncio.Semaphore(most)
        self._slot = ExitStack()
        self._pending: deque[asyncio.Future[T]] = deque()
        """Answers that are not taken yet; the last one may be the error that ends the stream."""
        self._news = asyncio.Event()
        """Set when there is another one, the client has no more messages, or the server's state changes."""
        self._half_closed = False

    async def run(self, messages: AsyncIterator[Message], context: Context) -> None:
        """Writes answers until the client has no more messages. Raises ServiceError."""
        with self._write_timeouts.writer(sender(context)) as writer:
            async with aclosing(self.answers(messages, context)) as answers:
                async for answer in answers:
                    await writer.write(answer)

    async def answers(self, messages: AsyncIterator[Message], context: Context) -> AsyncGenerator[T, None]:
        """Yields answers until the client has no more messages; close it. Raises ServiceError."""
        self._state.require_open()
        reading = asyncio.create_task(self._read(messages, context), name="ordered stream")
        watching = asyncio.create_task(self._watch(), name="ordered stream's server")
        try:
            while await self._has_pending():
                yield await self._pending[0]
                self._pending.popleft()
                self._room.release()
                if not self._pending:
                    self._slot.close()
        finally:
            left: list[asyncio.Future[Any]] = [reading, watching, *self._pending]
            for each in left:
                each.cancel()
            await asyncio.wait(left)
            _ = [each.cancelled() or each.exception() for each in left]  # errors behind the one that counts
            self._slot.close()

    async def _has_pending(self) -> bool:
        """Waits for a request; returns False when none will come. Raises Draining."""
        while not self._pending and not self._half_closed:
            if self._state.leaves:  # an idle stream would keep the server from stopping
                raise Draining
            self._news.clear()
            await self._news.wait()
        return bool(self._pending)

    async def _watch(self) -> None:
        """Wakes answers() whenever the server is about to stop: a drain may be undone, and begin again."""
        while True:
            if self._state.leaves:
                self._news.set()
            await self._state.changed()

    async def _read(self, messages: AsyncIterator[Message], context: Context) -> None:
        """Begins a request for each message; what ends the stream follows the last one."""
        try:
            async for message in messages:
                await self._room.acquire()
                self._state.require_open()
                call = reauthenticated_call(context)
                if not self._pending:
                    self._slot.enter_context(self._limits.call(call.caller))
                self._pending.append(asyncio.ensure_future(self._answer(message, call)))
                self._news.set()
            self._half_closed = True
        except Exception as error:
            failed = asyncio.get_running_loop().create_future()
            failed.set_exception(error)
            self._pending.append(failed)
        self._news.set()
