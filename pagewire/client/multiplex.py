"""Many requests over one stream, for ordinary code; multiplex_aio.py is its twin for asyncio."""

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any, Self, Unpack

import grpc

from pagewire.client.errors import RpcError, from_grpc
from pagewire.client.exchange import Command, Event, Exchange, Message, MultiplexedRequest
from pagewire.client.params import GenerateOptions, PromptLike, SamplingParams, generate_request
from pagewire.client.recovery import Recovery
from pagewire.v1 import generation_pb2

Call = Callable[[int, Iterator[Command]], Any]
"""Begins one at the server at a place, with what is to be said."""
_MAX_MESSAGES = 8
"""Of a line, that wait for whoever iterates; then the server is not read from."""
_PARTING_S = 1.0


class Multiplex:
    """Requests over one stream: outputs of one step of the engine arrive together, whosever they are.

    Iterate for (request, delta), in the order of their making; a delta of None says that the request has
    failed, by its `error`. The iteration ends when all that was sent has ended; more can be sent at any
    time, from any thread. When a server dies, the unfinished requests go on with another one. Leaving the
    with statement cancels what has not ended.
    """

    def __init__(
        self,
        call: Call,
        recover: Callable[[generation_pb2.GenerateRequest], Recovery],
        model: str,
        max_in_flight: int,
    ) -> None:
        self._model = model
        self._call = call
        self._events: _Events = queue.SimpleQueue()
        self._lines: set[_Line] = set()
        self._lock = threading.Lock()  # of the exchange
        self._exchange = Exchange(self._open_line, recover, max_in_flight)

    def send(
        self, prompt: PromptLike, params: SamplingParams | None = None, **options: Unpack[GenerateOptions]
    ) -> MultiplexedRequest:
        """Begins a request, as Client.stream() does. Raises ValueError where its request_id is in use
        here."""
        message = generate_request(prompt, params, options, self._model)
        with self._lock:
            return self._exchange.begin(message)

    def abort(self, request: MultiplexedRequest) -> None:
        """Ends one, with FinishReason.ABORTED; one that no server has, by an error."""
        with self._lock:
            self._exchange.abort(request)
        self._events.put(None)  # whoever waits looks again

    def results(self) -> Iterator[MultiplexedRequest]:
        """Each request when it has ended, well or not."""
        told: set[MultiplexedRequest] = set()
        for request, _ in self:
            if request.done and request not in told:
                told.add(request)
                yield request

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        while True:
            with self._lock:
                if self._exchange.ready:
                    return self._exchange.ready.popleft()
                if not self._exchange.num_open:
                    raise StopIteration
                patience = self._exchange.send_due()
            self._hear(patience)

    def _hear(self, patience: float | None) -> None:
        """Takes in what comes next, if it comes in so many seconds."""
        try:
            event = self._events.get(timeout=patience)
        except queue.Empty:
            return
        if event is None:
            return
        line, news = event
        with self._lock:
            if isinstance(news, Message):
                line.credit.release()
                self._exchange.received(line, news)
            else:
                self._lines.discard(line)
                self._exchange.ended(line, news)

    def _open_line(self, place: int) -> "_Line":
        line = _Line(place, self._call, self._events)
        self._lines.add(line)
        return line

    def close(self) -> None:
        """Cancels what has not ended."""
        with self._lock:
            lines, self._lines = self._lines, set()
        for line in lines:
            line.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Line:
    """See exchange.Line."""

    def __init__(self, place: int, call: Call, events: "_Events") -> None:
        self.place = place
        self.requests: dict[str, MultiplexedRequest] = {}
        self.credit = threading.Semaphore(_MAX_MESSAGES)
        """What may still be read before somebody takes it."""
        self._commands: queue.SimpleQueue[Command | None] = queue.SimpleQueue()
        self._call = call(place, iter(self._commands.get, None))
        self._reading = threading.Thread(target=self._read, args=(events,), name="multiplex", daemon=True)
        self._reading.start()

    def say(self, command: Command) -> None:
        """Sends it, some time soon."""
        self._commands.put(command)

    def half_close(self) -> None:
        """Nothing more will be said. Idempotent."""
        self._commands.put(None)

    def close(self) -> None:
        """Waits a moment for the server's word, where it owes nothing but that."""
        self.half_close()
        if not self.requests:
            self._reading.join(_PARTING_S)
        self._call.cancel()
        self.credit.release(_MAX_MESSAGES)
        self._reading.join(_PARTING_S)

    def _read(self, events: "_Events") -> None:
        error: RpcError | None = None
        try:
            for message in self._call:
                self.credit.acquire()
                events.put((self, message))
        except grpc.RpcError as problem:
            error = from_grpc(problem)
        self.half_close()  # so that nobody waits for something to say
        events.put((self, error))


_Events = queue.SimpleQueue[tuple[_Line, Message | RpcError | None] | None]
"""What lines bring, in order. None: nothing, but look again."""
