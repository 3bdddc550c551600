"""The part of Client that does I/O: blocking calls, sleeping, and the reader thread of a multiplexed call.

io_aio.py has the same names for asyncio. Everything else of the clients is written once, for asyncio.
"""

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import grpc

from pagewire_client.errors import RpcError, from_grpc
from pagewire_client.results import ToolCall
from pagewire_client.tools import bound_call, result_message
from pagewire_client.transport.exchange import Command, Message, MultiplexedRequest

Channel = grpc.Channel
secure_channel = grpc.secure_channel
insecure_channel = grpc.insecure_channel
Lock = threading.Lock
sleep = time.sleep
StartCall = Callable[[int, Iterator[Command]], Any]
"""Starts GenerateMultiplexed on the server with an index, with the commands to send."""
_MAX_UNREAD = 8
"""Messages of a call that may wait for the consumer; while so many wait, the call is not read from."""
_CLOSE_S = 1.0


def unary(method: Any, request: Any, timeout: float | None, metadata: Any) -> Any:
    """Returns the response. Raises grpc.RpcError."""
    call = method.future(request, timeout=timeout, metadata=metadata)
    try:
        return call.result()
    except grpc.RpcError:
        raise
    except BaseException:  # such as Ctrl-C: a blocking call would leave the request running
        call.cancel()
        raise


def read(call: Any) -> Any:
    """Returns the next message of a streaming call, or None at its end. Raises grpc.RpcError."""
    return next(call, None)


def call_tool(call: ToolCall, functions: Mapping[str, Callable[..., Any]]) -> dict[str, Any]:
    """Calls a function; returns the message that answers the call."""
    try:
        ready = bound_call(call, functions)
    except ValueError as error:
        return result_message(call, f"error: {error}")
    return result_message(call, ready())


class Inbox:
    """What the calls of a multiplexed stream receive, in order of arrival."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Arrival | None] = queue.SimpleQueue()

    def put(self, call: "Call", news: Message | RpcError | None) -> None:
        """Waits while the call has too many unread messages; the end of a call does not wait."""
        if isinstance(news, Message):
            call.credit.acquire()
        self._queue.put((call, news))

    def get(self, timeout: float | None) -> "Arrival | None":
        """Returns the next arrival, or None after `timeout` seconds or wake()."""
        try:
            arrival = self._queue.get(timeout=timeout)
        except queue.Empty:
            return None
        if arrival is not None and isinstance(arrival[1], Message):
            arrival[0].credit.release()
        return arrival

    def wake(self) -> None:
        """Makes get() return, so that its caller looks at the exchange again."""
        self._queue.put(None)


class Call:
    """Implements exchange.MultiplexCall with two threads: gRPC's writer and a reader that fills the inbox."""

    def __init__(self, server: int, start: StartCall, inbox: Inbox) -> None:
        self.server = server
        self.requests: dict[str, MultiplexedRequest] = {}
        self.credit = threading.Semaphore(_MAX_UNREAD)
        """Messages that the reader may still put into the inbox."""
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._call = start(server, iter(self._commands.get, None))
        self._reader = threading.Thread(target=self._read, args=(inbox,), name="multiplex", daemon=True)
        self._reader.start()

    def write(self, command: Command) -> None:
        """Sends a command soon; does not wait."""
        self._commands.put(command)

    def half_close(self) -> None:
        """Ends the commands of this call. Idempotent."""
        self._commands.put(None)

    def close(self) -> None:
        """Cancels the call. A call without requests gets a second to end with a status of its own."""
        self.half_close()
        if not self.requests:
            self._reader.join(_CLOSE_S)
        self._call.cancel()
        self.credit.release(_MAX_UNREAD)  # lets a reader go that waits in put()
        self._reader.join(_CLOSE_S)

    def _read(self, inbox: Inbox) -> None:
        error: RpcError | None = None
        try:
            for message in self._call:
                inbox.put(self, message)
        except grpc.RpcError as problem:
            error = from_grpc(problem)
        self.half_close()  # ends the writer
        inbox.put(self, error)


def close_all(calls: Iterable[Call]) -> None:
    """Closes calls one after another."""
    for call in calls:
        call.close()


Arrival = tuple[Call, Message | RpcError | None]
"""A call, and a message of it, or its end: an error, or None for an end with status OK."""
