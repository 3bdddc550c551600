# Generated from multiplex_aio.py by scripts/clients.py: change that file, then run 'make clients'.
"""Many requests over one stream, for threads."""

from collections.abc import Callable, Iterator
from typing import Self, Unpack

from pagewire.v1 import generation_pb2
from pagewire_client.params import (
    GenerateOptions,
    PromptLike,
    SamplingParams,
    generate_request,
    output_parser,
)
from pagewire_client.transport import io_sync
from pagewire_client.transport.exchange import Event, Exchange, Message, MultiplexedRequest
from pagewire_client.transport.recovery import Recovery


class Multiplex:
    """Many requests over one gRPC stream: the outputs of an engine step arrive in one message.

    Iterate for (request, delta), in order of arrival; a delta of None means that the request failed, with
    its `error`. The iteration ends when all requests that were sent have ended; more can be sent at any
    time. Requests may be sent from any thread. When a server dies, the unfinished requests continue on
    another one. Leaving the with statement cancels unfinished requests.
    """

    def __init__(
        self,
        start_call: io_sync.StartCall,
        recover: Callable[[generation_pb2.GenerateRequest], Recovery],
        model: str,
        max_in_flight: int,
    ) -> None:
        self._start_call = start_call
        self._model = model
        self._inbox = io_sync.Inbox()
        self._calls: set[io_sync.Call] = set()
        self._lock = io_sync.Lock()
        """Guards the exchange and the set of calls."""
        self._exchange = Exchange(self._open_call, recover, max_in_flight)

    def send(
        self, prompt: PromptLike, params: SamplingParams | None = None, **options: Unpack[GenerateOptions]
    ) -> MultiplexedRequest:
        """Starts a request; the arguments are those of Client.stream(). Raises ValueError when a
        request in flight on this stream has the same request_id."""
        request = self.send_message(generate_request(prompt, params, options, self._model))
        request.generation.parser = output_parser(params, options)
        return request

    def send_message(self, message: generation_pb2.GenerateRequest) -> MultiplexedRequest:
        """Starts a request that is given as its message. Raises ValueError as send() does."""
        with self._lock:
            return self._exchange.send(message)

    def abort(self, request: MultiplexedRequest) -> None:
        """Ends a request with FinishReason.ABORTED; one that no server holds ends with an error."""
        with self._lock:
            self._exchange.abort(request)
        self._inbox.wake()

    def results(self) -> Iterator[MultiplexedRequest]:
        """Yields each request once, when it has ended or failed."""
        seen: set[MultiplexedRequest] = set()
        for request, _ in self:
            if request.done and request not in seen:
                seen.add(request)
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
                seconds = self._exchange.resend_due()
            self._receive(seconds)

    def _receive(self, timeout: float | None) -> None:
        """Handles the next arrival, if there is one within `timeout` seconds."""
        arrival = self._inbox.get(timeout)
        if arrival is None:
            return
        call, news = arrival
        with self._lock:
            if isinstance(news, Message):
                self._exchange.received(call, news)
            else:
                self._calls.discard(call)
                self._exchange.ended(call, news)

    def _open_call(self, server: int) -> io_sync.Call:
        call = io_sync.Call(server, self._start_call, self._inbox)
        self._calls.add(call)
        return call

    def close(self) -> None:
        """Cancels unfinished requests."""
        with self._lock:
            calls, self._calls = self._calls, set()
        io_sync.close_all(calls)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
