"""Many requests over one stream: which are under way, what of an answer is whose, what is sent again. No I/O.

A line is one call of GenerateMultiplexed, to one server. When it breaks, each of its requests goes on over
another one as a stream of its own would (recovery.py). A server that is about to leave refuses what is new
and finishes the rest: then there are two lines, of which the old one ends when it has no requests left.

Twins drive it: multiplex.py for ordinary code, multiplex_aio.py for asyncio.
"""

import secrets
import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import grpc

from pagewire.client.errors import Cancelled, RpcError, Unavailable, from_request_error
from pagewire.client.recovery import DRAINING, Recovery
from pagewire.client.results import Delta
from pagewire.v1 import generation_pb2

Command = generation_pb2.GenerateMultiplexedRequest
Message = generation_pb2.GenerateMultiplexedResponse

MAX_IN_FLIGHT = 256
"""Requests that are sent; more wait here. A server takes 1,024 on a stream, unless it is told otherwise."""


class MultiplexedRequest:
    """A request among others. `generation` holds everything received so far; its answer is there when it is
    `done`, unless there is an `error`."""

    def __init__(self, recovery: Recovery, own_id: str) -> None:
        """own_id: that the caller has chosen; empty: each attempt gets one."""
        self.generation = recovery.generation
        self.error: RpcError | None = None
        self.done = False
        self._recovery = recovery
        self._own_id = own_id
        self._id = ""  # of the last attempt
        self._line: Line | None = None  # that it is on
        self._aborted = False


class Line(Protocol):
    """One call."""

    requests: dict[str, MultiplexedRequest]
    """Those that it has, by the ids that the server knows."""
    place: int
    """Of the server."""

    def say(self, command: Command) -> None:
        """Sends it, some time soon."""

    def half_close(self) -> None:
        """Nothing more will be said. Idempotent."""


Event = tuple[MultiplexedRequest, Delta | None]
"""What is new of a request. None: it has failed."""


class Exchange:
    """The requests of one multiplexed stream, over all its lines."""

    def __init__(
        self,
        open_line: Callable[[int], Line],
        recover: Callable[[generation_pb2.GenerateRequest], Recovery],
        max_in_flight: int = MAX_IN_FLIGHT,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """open_line: to the server at a place."""
        self.ready: deque[Event] = deque()
        self._open_line = open_line
        self._recover = recover
        self._max_in_flight = max_in_flight
        self._clock = clock
        self._lines: dict[int, Line] = {}  # by place: those that take new requests
        self._waiting: deque[MultiplexedRequest] = deque()  # until others have ended
        self._resting: list[tuple[float, MultiplexedRequest]] = []  # until they are sent again: when
        self._own_ids: set[str] = set()  # of what is not done
        self._num_in_flight = 0  # with those that rest

    @property
    def num_open(self) -> int:
        """Requests that are not done."""
        return self._num_in_flight + len(self._waiting)

    def begin(self, message: generation_pb2.GenerateRequest) -> MultiplexedRequest:
        """Sends a request, at once if it may be. Raises ValueError where its id is in use."""
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
        """Ends a request: as FinishReason.ABORTED, where a server has it."""
        request._aborted = True
        if request._line is not None:
            abort = generation_pb2.AbortRequest(request_ids=[request._id])
            request._line.say(Command(abort=abort))
        elif not request.done:
            if request in self._waiting:
                self._waiting.remove(request)
                self._num_in_flight += 1
            self._resting = [each for each in self._resting if each[1] is not request]
            self._end(request, Cancelled(grpc.StatusCode.CANCELLED, "aborted while no server had it"))

    def received(self, line: Line, message: Message) -> None:
        """Takes in what a line brought."""
        for response in message.responses:
            request = line.requests.get(response.request_id)
            if request is None:
                continue
            recovery = request._recovery
            self.ready.extend([(request, delta) for delta in recovery.received(response)])
            if recovery.complete:
                self._take_off(line, request)
                self._end(request)
        for failure in message.errors:
            request = line.requests.get(failure.request_id)
            if request is not None:
                self._take_off(line, request)
                error = from_request_error(failure)
                if isinstance(error, Unavailable) and error.reason == DRAINING:
                    self._leave(line)
                self._fail(request, error)

    def ended(self, line: Line, error: RpcError | None) -> None:
        """A line is no more."""
        self._leave(line)
        lost = Unavailable(grpc.StatusCode.UNAVAILABLE, "the stream ended before its requests")
        for request in list(line.requests.values()):
            self._take_off(line, request)
            self._fail(request, error or lost)

    def send_due(self) -> float | None:
        """Sends again what has rested; seconds until there is more of that, None: there is none."""
        now, resting = self._clock(), self._resting
        self._resting = [each for each in resting if each[0] > now]
        for when, request in resting:
            if when <= now:
                self._send(request)
        return min(when for when, _ in self._resting) - now if self._resting else None

    def _fill(self) -> None:
        while self._waiting and self._num_in_flight < self._max_in_flight:
            self._num_in_flight += 1
            self._send(self._waiting.popleft())

    def _send(self, request: MultiplexedRequest) -> None:
        message, _ = request._recovery.attempt()
        place = request._recovery.place
        if place not in self._lines:
            self._lines[place] = self._open_line(place)
        line = self._lines[place]
        # An engine that has not missed a dead server yet still has the last attempt, under its id.
        message.request_id = request._id = request._own_id or secrets.token_hex(16)
        request._line, line.requests[request._id] = line, request
        line.say(Command(generate=message))

    def _fail(self, request: MultiplexedRequest, error: RpcError) -> None:
        """An attempt is over. Another one follows, if that makes sense."""
        pause = None if request._aborted else request._recovery.after(error)
        if pause is None:
            self._end(request, error)
        else:
            self._resting.append((self._clock() + pause, request))

    def _end(self, request: MultiplexedRequest, error: RpcError | None = None) -> None:
        request.done, request.error = True, error
        if error is not None:
            self.ready.append((request, None))
        self._own_ids.discard(request._own_id)
        self._num_in_flight -= 1
        self._fill()

    def _take_off(self, line: Line, request: MultiplexedRequest) -> None:
        del line.requests[request._id]
        request._line = None
        if not line.requests and self._lines.get(line.place) is not line:
            line.half_close()

    def _leave(self, line: Line) -> None:
        """Nothing new goes over it."""
        if self._lines.get(line.place) is line:
            del self._lines[line.place]
            if not line.requests:
                line.half_close()
