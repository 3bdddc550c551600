"""The part of AsyncClient that does I/O: calls of grpc.aio, sleeping, and the reader of a multiplexed call.

io_sync.py has the same names for threads. Everything else of the clients is written once, for asyncio.
"""

import asyncio
import inspect
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import grpc

from pagewire_client.errors import RpcError, from_grpc
from pagewire_client.results import ToolCall
from pagewire_client.tools import bound_call, result_message
from pagewire_client.transport.exchange import Command, Message, MultiplexedRequest

Channel = grpc.aio.Channel
secure_channel = grpc.aio.secure_channel
insecure_channel = grpc.aio.insecure_channel
Lock = nullcontext
"""No other task runs between two awaits, so that shared state needs no lock."""
sleep = asyncio.sleep
StartCall = Callable[[int, AsyncIterator[Command]], Any]
"""Starts GenerateMultiplexed on the server with an index, with the commands to send."""
_MAX_UNREAD = 8
"""Messages that may wait for the consumer; while so many wait, the calls are not read from."""
_CLOSE_S = 1.0


async def unary(method: Any, request: Any, timeout: float | None, metadata: Any) -> Any:
    """Returns the response; cancelling the task cancels the call. Raises grpc.RpcError."""
    return await method(request, timeout=timeout, metadata=metadata)


async def read(call: Any) -> Any:
    """Returns the next message of a streaming call, or None at its end. Raises grpc.RpcError."""
    message = await call.read()
    return None if message is grpc.aio.EOF else message


async def call_tool(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Calls a function, which may be a coroutine function; returns the message that answers the call."""
    try:
        ready = bound_call(call, functions)
    except ValueError as error:
        return result_message(call, f"error: {error}")
    result = ready()
    return result_message(call, await result if inspect.isawaitable(result) else result)


class AsyncInbox:
    """What the calls of a multiplexed stream receive, in order of arrival."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Arrival | None] = asyncio.Queue(_MAX_UNREAD)

    async def put(self, call: "AsyncCall", news: Message | RpcError | None) -> None:
        """Waits while the inbox is full."""
        await self._queue.put((call, news))

    async def get(self, timeout: float | None) -> "Arrival | None":
        """Returns the next arrival, or None after `timeout` seconds or wake()."""
        if timeout is None:
            return await self._queue.get()
        try:
            return await asyncio.wait_for(self._queue.get(), timeout)
        except TimeoutError:
            return None

    def wake(self) -> None:
        """Makes get() return, so that its caller looks at the exchange again."""
        if self._queue.empty():
            self._queue.put_nowait(None)


class AsyncCall:
    """Implements exchange.MultiplexCall with two tasks: gRPC's writer and a reader that fills the inbox."""

    def __init__(self, server: int, start: StartCall, inbox: AsyncInbox) -> None:
        self.server = server
        self.requests: dict[str, MultiplexedRequest] = {}
        self._commands: deque[Command] = deque()
        self._more = asyncio.Event()
        self._half_closed = False
        self._call = start(server, self._pending())
        self._reader = asyncio.create_task(self._read(inbox))

    def write(self, command: Command) -> None:
        """Sends a command soon; does not wait."""
        self._commands.append(command)
        self._more.set()

    def half_close(self) -> None:
        """Ends the commands of this call. Idempotent."""
        self._half_closed = True
        self._more.set()

    async def close(self) -> None:
        """Cancels the call. A call without requests gets a second to end with a status of its own."""
        self.half_close()
        if not self.requests:
            await asyncio.wait([self._reader], timeout=_CLOSE_S)
        self._call.cancel()
        self._reader.cancel()
        await asyncio.wait([self._reader])

    async def _pending(self) -> AsyncIterator[Command]:
        while True:
            while self._commands:
                yield self._commands.popleft()
            if self._half_closed:
                return
            self._more.clear()
            await self._more.wait()

    async def _read(self, inbox: AsyncInbox) -> None:
        error: RpcError | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                await inbox.put(self, message)
        except grpc.RpcError as problem:
            error = from_grpc(problem)
        self.half_close()  # ends the writer
        await inbox.put(self, error)


async def close_all(calls: Iterable[AsyncCall]) -> None:
    """Closes calls side by side."""
    await asyncio.gather(*(call.close() for call in calls))


Arrival = tuple[AsyncCall, Message | RpcError | None]
"""A call, and a message of it, or its end: an error, or None for an end with status OK."""
