"""Tracks the requests of one multiplexed stream: which are in flight, where, and what is sent again. No I/O.

A MultiplexCall is one GenerateMultiplexed call to one server. When a call breaks, each of its requests
continues over another one, as a stream of its own would (recovery.py). A server that drains refuses new
requests and finishes the others: new ones then go over a second call, and the first is closed with its last
request.

multiplex.py drives it with threads, multiplex_aio.py with asyncio.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import grpc

from pagewire.v1 import generation_pb2
from pagewire_client.errors import Cancelled, RpcError, Unavailable, from_request_error
from pagewire_client.results import Delta
from pagewire_client.transport.recovery import DRAINING, Recovery

Command = generation_pb2.GenerateMultiplexedRequest
Message = generation_pb2.GenerateMultiplexedResponse

MAX_IN_FLIGHT = 256
"""Requests sent at a time; more wait in the client. By default a server accepts 1,024 on one stream."""


class MultiplexedRequest:
    """One request of a multiplexed stream. `generation` holds everything received so far; it is complete when
    the request is `done` without an `error`."""

    def __init__(self, recovery: Recovery, own_id: str) -> None:
        """own_id: the request id that the caller chose; if empty, each attempt gets a random one."""
        self.generation = recovery.generation
        self.error: RpcError | None = None
        self.done = False
        self._recovery = recovery
        self._own_id = own_id
        self._id = ""  # of the last attempt
        self._call: MultiplexCall | None = None  # the call that carries it now
        self._aborted = False


class MultiplexCall(Protocol):
    """One GenerateMultiplexed call."""

    requests: dict[str, MultiplexedRequest]
    """The unfinished requests of this call, by the ids that the server knows."""
    server: int
    """Index of the server."""

    def write(self, command: Command) -> None:
        """Sends a command soon; does not wait."""

    def half_close(self) -> None:
        """Ends the commands of this call. Idempotent."""


Event = tuple[MultiplexedRequest, Delta | None]
"""A request and its new delta, or None when the request has failed."""


class Exchange:
    """The requests of one multiplexed stream, over all its calls."""

    def __init__(
        self,
        open_call: Callable[[int], MultiplexCall],
        recover: Callable[[generation_pb2.GenerateRequest], Recovery],
        max_in_flight: int = MAX_IN_FLIGHT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """open_call: starts a call to the server with an index."""
        self.ready: deque[Event] = deque()
        self._open_call = open_call
        self._recover = recover
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._calls: dict[int, MultiplexCall] = {}  # by server: those that accept new requests
        self._waiting: deque[MultiplexedRequest] = deque()  # until others have ended
        self._pausing: list[tuple[float, MultiplexedRequest]] = []  # (time to send again, request)
        self._own_ids: set[str] = set()  # of unfinished requests
        self._num_in_flight = 0  # includes the pausing ones

    @property
    def num_open(self) -> int:
        """Number of unfinished requests."""
        return self._num_in_flight + len(self._waiting)

    def send(self, message: generation_pb2.GenerateRequest) -> MultiplexedRequest:
        """Sends a request, or queues it while too many are in flight. Raises ValueError when an unfinished
        request has the same id."""
        own_id = message.request_id
        if own_id in self._own_ids:
            raise ValueError(f"request_id: {own_id!r} is in flight on this stream")
        request = MultiplexedRequest(self._recover(message), own_id)
        if own_id:
            self._own_ids.add(own_id)
        self._waiting.append(request)
        self._fill()
        return request

    def abort(self, request: MultiplexedRequest) -> None:
        """Ends a request: with FinishReason.ABORTED if a server holds it, else with Cancelled."""
        request._aborted = True
        if request._call is not None:
            abort = generation_pb2.AbortRequest(request_ids=[request._id])
            request._call.write(Command(abort=abort))
        elif not request.done:
            if request in self._waiting:
                self._waiting.remove(request)
                self._num_in_flight += 1
            self._pausing = [each for each in self._pausing if each[1] is not request]
            self._end(request, Cancelled(grpc.StatusCode.CANCELLED, "aborted while no server had it"))

    def received(self, call: MultiplexCall, message: Message) -> None:
        """Distributes a message of a call to its requests."""
        for response in message.responses:
            request = call.requests.get(response.request_id)
            if request is None:
                continue
            recovery = request._recovery
            self.ready.extend([(request, delta) for delta in recovery.received(response)])
            if recovery.complete:
                self._detach(call, request)
                self._end(request)
        for failure in message.errors:
            request = call.requests.get(failure.request_id)
            if request is not None:
                self._detach(call, request)
                error = from_request_error(failure)
                if isinstance(error, Unavailable) and error.reason == DRAINING:
                    self._retire(call)
                self._fail(request, error)

    def ended(self, call: MultiplexCall, error: RpcError | None) -> None:
        """Handles the end of a call; its unfinished requests are sent again or fail."""
        self._retire(call)
        lost = Unavailable(grpc.StatusCode.UNAVAILABLE, "the stream ended before its requests")
        for request in list(call.requests.values()):
            self._detach(call, request)
            self._fail(request, error or lost)

    def resend_due(self) -> float | None:
        """Sends the requests whose pause is over. Returns the seconds until the next is due, or None."""
        now, pausing = self._clock(), self._pausing
        self._pausing = [each for each in pausing if each[0] > now]
        for when, request in pausing:
            if when <= now:
                self._send(request)
        return min(when for when, _ in self._pausing) - now if self._pausing else None

    def _fill(self) -> None:
        while self._waiting and self._num_in_flight < self._max_in_flight:
            self._num_in_flight += 1
            self._send(self._waiting.popleft())

    def _send(self, request: MultiplexedRequest) -> None:
        message, _ = request._recovery.attempt()
        server = request._recovery.server
        if server not in self._calls:
            self._calls[server] = self._open_call(server)
        call = self._calls[server]
        # All attempts have one id: an engine that still runs the request gives it to the last of them.
        message.request_id = request._id = request._own_id or message.request_id or secrets.token_hex(16)
        request._call, call.requests[request._id] = call, request
        call.write(Command(generate=message))

    def _fail(self, request: MultiplexedRequest, error: RpcError) -> None:
        """Ends an attempt: another one follows after a pause where it can help."""
        pause = None if request._aborted else request._recovery.after(error)
        if pause is None:
            self._end(request, error)
        else:
            self._pausing.append((self._clock() + pause, request))

    def _end(self, request: MultiplexedRequest, error: RpcError | None = None) -> None:
        request.done, request.error = True, error
        if error is not None:
            self.ready.append((request, None))
        self._own_ids.discard(request._own_id)
        self._num_in_flight -= 1
        self._fill()

    def _detach(self, call: MultiplexCall, request: MultiplexedRequest) -> None:
        del call.requests[request._id]
        request._call = None
        if not call.requests and self._calls.get(call.server) is not call:
            call.half_close()

    def _retire(self, call: MultiplexCall) -> None:
        """Sends no new requests over a call, and closes it once it is empty."""
        if self._calls.get(call.server) is call:
            del self._calls[call.server]
            if not call.requests:
                call.half_close()
