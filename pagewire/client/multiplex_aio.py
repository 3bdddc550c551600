"""Many requests over one stream, for asyncio; multiplex.py is its twin for ordinary code."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any, Self, Unpack

import grpc

from pagewire.client.errors import RpcError, from_grpc
from pagewire.client.exchange import Command, Event, Exchange, Message, MultiplexedRequest
from pagewire.client.params import GenerateOptions, PromptLike, SamplingParams, generate_request
from pagewire.client.recovery import Recovery
from pagewire.v1 import generation_pb2

Call = Callable[[int, AsyncIterator[Command]], Any]
"""Begins one at the server at a place, with what is to be said."""
_MAX_MESSAGES = 8
"""That wait for whoever iterates; then the server is not read from."""
_PARTING_S = 1.0


class AsyncMultiplex:
    """Requests over one stream: outputs of one step of the engine arrive together, whosever they are.

    Iterate for (request, delta), in the order of their making; a delta of None says that the request has
    failed, by its `error`. The iteration ends when all that was sent has ended; more can be sent at any
    time. When a server dies, the unfinished requests go on with another one. Leaving the async with
    statement cancels what has not ended.
    """

    def __init__(
        self,
        call: Call,
        recover: Callable[[generation_pb2.GenerateRequest], Recovery],
        model: str,
        max_in_flight: int,
    ) -> None:
        self._model = model
        self._events: _Events = asyncio.Queue(_MAX_MESSAGES)
        self._call = call
        self._lines: set[_Line] = set()
        self._exchange = Exchange(self._open_line, recover, max_in_flight)

    def send(
        self, prompt: PromptLike, params: SamplingParams | None = None, **options: Unpack[GenerateOptions]
    ) -> MultiplexedRequest:
        """Begins a request, as AsyncClient.stream() does. Raises ValueError where its request_id is in use
        here."""
        return self._exchange.begin(generate_request(prompt, params, options, self._model))

    def abort(self, request: MultiplexedRequest) -> None:
        """Ends one, with FinishReason.ABORTED; one that no server has, by an error."""
        self._exchange.abort(request)
        if self._events.empty():
            self._events.put_nowait(None)

    async def results(self) -> AsyncIterator[MultiplexedRequest]:
        """Each request when it has ended, well or not."""
        told: set[MultiplexedRequest] = set()
        async for request, _ in self:
            if request.done and request not in told:
                told.add(request)
                yield request

    def __aiter__(self) -> AsyncIterator[Event]:
        return self

    async def __anext__(self) -> Event:
        exchange = self._exchange
        while not exchange.ready:
            if not exchange.num_open:
                raise StopAsyncIteration
            await self._hear(exchange.send_due())
        return exchange.ready.popleft()

    async def _hear(self, patience: float | None) -> None:
        """Takes in what comes next, if it comes in so many seconds."""
        if patience is None:
            event = await self._events.get()
        else:
            try:
                event = await asyncio.wait_for(self._events.get(), patience)
            except TimeoutError:
                return
        if event is None:
            return
        line, news = event
        if isinstance(news, Message):
            self._exchange.received(line, news)
        else:
            self._lines.discard(line)
            self._exchange.ended(line, news)

    def _open_line(self, place: int) -> "_Line":
        line = _Line(place, self._call, self._events)
        self._lines.add(line)
        return line

    async def aclose(self) -> None:
        """Cancels what has not ended."""
        lines, self._lines = self._lines, set()
        await asyncio.gather(*(line.close() for line in lines))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class _Line:
    """See exchange.Line."""

    def __init__(
        self,
        place: int,
        call: Call,
        events: "_Events",
    ) -> None:
        self.place = place
        self.requests: dict[str, MultiplexedRequest] = {}
        self._commands: deque[Command] = deque()
        self._more = asyncio.Event()
        self._half_closed = False
        self._call = call(place, self._say_all())
        self._reading = asyncio.create_task(self._read(events))

    def say(self, command: Command) -> None:
        """Sends it, some time soon."""
        self._commands.append(command)
        self._more.set()

    def half_close(self) -> None:
        """Nothing more will be said. Idempotent."""
        self._half_closed = True
        self._more.set()

    async def close(self) -> None:
        """Waits a moment for the server's word, where it owes nothing but that."""
        self.half_close()
        if not self.requests:
            await asyncio.wait([self._reading], timeout=_PARTING_S)
        self._call.cancel()
        self._reading.cancel()
        await asyncio.wait([self._reading])

    async def _say_all(self) -> AsyncIterator[Command]:
        while True:
            while self._commands:
                yield self._commands.popleft()
            if self._half_closed:
                return
            self._more.clear()
            await self._more.wait()

    async def _read(self, events: "_Events") -> None:
        error: RpcError | None = None
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                await events.put((self, message))
        except grpc.RpcError as problem:
            error = from_grpc(problem)
        self.half_close()  # so that nobody waits for something to say
        await events.put((self, error))


_Events = asyncio.Queue[tuple[_Line, Message | RpcError | None] | None]
"""What lines bring, in order. None: nothing, but look again."""
