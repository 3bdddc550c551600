"""Many requests of one client over one stream: what a step produces for them leaves in one message.

Each request runs as it would alone, in a task that sleeps from its submission to its end. A stream that may
have output enqueues itself; the first one in the queue wakes the task that writes. So what arrives in one
message of the core leaves in one message, and a token costs neither a wake-up nor a message of its own. While
the client does not read, output accumulates in the streams and nowhere else; the number of rejections is
bounded by not reading further commands. Independent of the transport.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from functools import partial

from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.call.serving_state import ServingState
from frontend.errors import (
    Draining,
    InternalError,
    InvalidRequest,
    RequestExists,
    ServiceError,
    StreamFull,
    to_status,
)
from frontend.streams.generator import Generator
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream, wake
from frontend.validation.requests import check_abort
from frontend.validation.rules import MAX_ID_BYTES, identifier_problem
from pagewire.logs import traceback_of
from pagewire.v1 import generation_pb2

log = logging.getLogger(__name__)

MAX_BYTES = 1 << 20
"""Approximate size of a message; the rest follows in the next one. gRPC clients accept 4 MiB by default."""
MAX_ERRORS = 64
"""Rejections not yet read by the client; beyond it, no more commands are read."""
_OURS = asyncio.CancelledError, KeyboardInterrupt, SystemExit
"""Exceptions that do not concern a single request. (A panic in the tokenizer's Rust code does, and is not an
Exception.)"""


class _Member:
    """A request of the stream, from its command to its end."""

    __slots__ = ("engine_id", "over", "request_id", "stream", "task", "when_due")

    def __init__(
        self, request_id: str, engine_id: str, due: "deque[_Member]", wake: Callable[[], None]
    ) -> None:
        self.request_id = request_id
        self.engine_id = engine_id
        self.stream: Stream | None = None
        self.task: asyncio.Task[None] | None = None
        self.over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Resolved when its last message has been made, or with its failure."""
        self.when_due = partial(_enqueue, self, due, wake)


class Multiplexer:
    """The requests of one stream. Belongs to the event loop's thread; call aclose() at the end."""

    def __init__(
        self, generator: Generator, state: ServingState, limits: ConcurrencyLimits, max_requests: int
    ) -> None:
        """max_requests: in flight at once."""
        self._generator = generator
        self._state = state
        self._limits = limits
        self._max_requests = max_requests
        self._members: dict[str, _Member] = {}
        self._due: deque[_Member] = deque()  # members that may have output, each once
        self._errors: list[generation_pb2.RequestError] = []
        self._batch = generation_pb2.GenerateMultiplexedResponse()  # reused for each message
        self._half_closed = False
        self._broken: Exception | None = None
        self._waiter: asyncio.Future[None] | None = None  # the writer
        self._room: asyncio.Future[None] | None = None  # the reader
        self._watching = asyncio.create_task(self._watch(), name="multiplexed stream")

    # Commands.

    def handle(
        self, command: generation_pb2.GenerateMultiplexedRequest, authenticate: Callable[[], Call]
    ) -> None:
        """Executes a command. Its errors are reported as errors of its request.

        authenticate: returns the call after checking its token again; may raise ServiceError.
        """
        request_id = command.generate.request_id
        try:
            kind = command.WhichOneof("command")
            if kind == "generate":
                self._begin(command.generate, authenticate())
            elif kind == "abort":
                self._abort(command.abort, authenticate().caller)
            else:
                raise InvalidRequest({"command": "is required: generate or abort"})
        except ServiceError as error:
            self._report(request_id, error)

    async def wait_for_room(self) -> None:
        """Waits until the client has read enough rejections."""
        while len(self._errors) >= MAX_ERRORS:
            self._room = asyncio.get_running_loop().create_future()
            await self._room

    def half_close(self) -> None:
        """Marks the end of the client's commands. The stream ends with its last request."""
        self._half_closed = True
        self._wake()

    def break_off(self, error: Exception) -> None:
        """Makes take() raise an error, because the client's commands cannot be read."""
        self._broken = error
        self._wake()

    # Messages.

    async def take(self) -> generation_pb2.GenerateMultiplexedResponse | None:
        """Returns the next message as soon as there is one; None after the last. Raises ServiceError.

        The message is valid until the next call.
        """
        while not self._gather():
            if not self._members:
                if self._half_closed:
                    return None
                if self._state.leaves:  # an idle stream would keep the server from stopping
                    raise Draining
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._batch

    async def aclose(self) -> None:
        """Aborts the requests that are left."""
        tasks = [member.task for member in self._members.values() if member.task is not None]
        for task in (*tasks, self._watching):
            task.cancel()
        await asyncio.wait((*tasks, self._watching))

    def _begin(self, request: generation_pb2.GenerateRequest, call: Call) -> None:
        request_id = request.request_id
        if not request_id:
            raise InvalidRequest({"request_id": "is required where a stream has many requests"})
        if problem := identifier_problem(request_id):
            raise InvalidRequest({"request_id": problem})
        if request_id in self._members:
            raise RequestExists
        if self._state.leaves:
            raise Draining
        if len(self._members) >= self._max_requests:
            raise StreamFull(self._max_requests)
        member = _Member(request_id, call.caller.scope(request_id), self._due, self._wake)
        self._members[request_id] = member
        member.task = asyncio.create_task(self._run(member, request, call))

    def _abort(self, request: generation_pb2.AbortRequest, caller: Caller) -> None:
        check_abort(request)
        caller.may_abort_for(request.tenant)
        found = (self._members[name] for name in request.request_ids if name in self._members)
        self._generator.registry.abort([member.engine_id for member in found])

    async def _run(self, member: _Member, request: generation_pb2.GenerateRequest, call: Call) -> None:
        """Runs a request until its last message has been made."""
        try:
            with self._limits.call(call.caller):
                async with self._generator.open(request, call, CallMode(resumable=True)) as stream:
                    member.stream = stream
                    member.when_due()
                    await member.over
        except ServiceError as error:
            self._report(member.request_id, error)
        except _OURS:
            raise
        except BaseException as error:
            log.error("a request of a multiplexed stream failed: %s", traceback_of(error))
            self._report(member.request_id, InternalError())
        finally:
            del self._members[member.request_id]
            self._wake()

    def _report(self, request_id: str, error: ServiceError) -> None:
        status = to_status(error)
        self._errors.append(
            generation_pb2.RequestError(
                request_id=request_id[:MAX_ID_BYTES],
                code=status.code,
                message=status.message,
                details=status.details,
            )
        )
        self._wake()

    def _gather(self) -> bool:
        """Fills the next message. Returns False when there is nothing to send. Raises the error of
        break_off()."""
        if self._broken is not None:
            raise self._broken
        batch, due, size = self._batch, self._due, 0
        batch.Clear()
        for _ in range(len(due)):
            if size > MAX_BYTES:
                break
            size += self._put(due.popleft(), batch)
        batch.errors.extend(self._errors)
        self._errors.clear()
        if self._room is not None:
            wake(self._room)
        return bool(batch.responses or batch.errors)

    def _put(self, member: _Member, batch: generation_pb2.GenerateMultiplexedResponse) -> int:
        """Adds a request's new output to the message; returns its size in bytes."""
        stream, size = member.stream, 0
        assert stream is not None
        response = batch.responses.add()
        try:
            has_news = stream.put(response)
        except _OURS:
            raise
        except BaseException as error:
            member.over.set_exception(error)
            del batch.responses[-1]
            return 0
        if has_news:
            response.request_id = member.request_id
            size = response.ByteSize()
        else:
            del batch.responses[-1]
        if stream.over:
            wake(member.over)
        elif has_news and stream.has_more:
            member.when_due()
        else:
            stream.when_due(member.when_due)
        return size

    def _wake(self) -> None:
        if self._waiter is not None:
            wake(self._waiter)

    async def _watch(self) -> None:
        """Wakes the writer whenever the server is about to stop: a drain may be undone, and begin again."""
        while True:
            if self._state.leaves:
                self._wake()
            await self._state.changed()


def _enqueue(member: _Member, due: "deque[_Member]", wake: Callable[[], None]) -> None:
    if not due:
        wake()
    due.append(member)
