"""Runs the requests of one HTTP request on the Generator, and writes their answer."""

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from frontend.call.call import Call
from frontend.errors import ServiceError
from frontend.http.exchange import Exchange, Headers
from frontend.openai.requests.fields import Names
from frontend.parts import FrontendParts
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream, wake
from pagewire.v1 import generation_pb2

REQUEST_ID = "x-request-id"
"""Header with the client's name for its request; the answer has it, too."""


class BodyWriter(Protocol):
    """Writes an endpoint's answer, for one HTTP request."""

    def whole(self, responses: Sequence[generation_pb2.GenerateResponse]) -> Any:
        """Returns the JSON of a whole answer. responses: of each prompt."""

    def events(self, place: int, response: generation_pb2.GenerateResponse) -> bytes:
        """Returns the events for a message. place: which of the requests it belongs to."""

    def end(self, usages: Iterable[generation_pb2.Usage]) -> bytes:
        """Returns the last events. usages: of each request."""

    def failure(self, error: ServiceError) -> bytes:
        """Returns the last events of a stream that an error ends."""


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate, and how to answer.

    requests:   one per prompt.
    request_id: what the client knows them by.
    stream:     answer with server-sent events.
    """

    requests: Sequence[generation_pb2.GenerateRequest]
    request_id: str
    writer: BodyWriter
    names: Names
    stream: bool = False

    @property
    def headers(self) -> Headers:
        """Of an answer to valid requests."""
        return [(REQUEST_ID, self.request_id)]


class MergedStreams:
    """Takes messages from several streams, whichever has one."""

    def __init__(self, streams: Sequence[Stream]) -> None:
        self._open = list(enumerate(streams))
        self._response = generation_pb2.GenerateResponse()

    async def take(self) -> tuple[int, generation_pb2.GenerateResponse] | None:
        """Returns a stream's place and its next message, which is valid until the next call; None after the
        last. Raises ServiceError."""
        while True:
            for entry in list(self._open):
                place, stream = entry
                self._response.Clear()
                if stream.put(self._response):
                    self._open.remove(entry)
                    self._open.append(entry)  # the others come first next time
                    return place, self._response
                if stream.over:
                    self._open.remove(entry)
            if not self._open:
                return None
            due: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            for _, stream in self._open:
                stream.when_due(partial(wake, due))
            await due


async def generate(parts: FrontendParts, job: Job, call: Call, exchange: Exchange) -> None:
    """Generates and answers. Raises ServiceError."""
    parts.state.require_open()
    try:
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(
                    parts.generator.open(request, call, CallMode(one_message=not job.stream))
                )
                for request in job.requests
            ]
            if job.stream:
                await _write_events(job, streams, exchange)
            else:
                await _write_whole(job, streams, exchange)
    except ServiceError as error:
        raise job.names.translated(error) from None


async def _write_whole(job: Job, streams: Sequence[Stream], exchange: Exchange) -> None:
    responses = []
    for stream in streams:
        response = await stream.take()
        assert response is not None  # a stream ends with a message or raises
        responses.append(response)
    await exchange.respond(200, job.writer.whole(responses), job.headers)


async def _write_events(job: Job, streams: Sequence[Stream], exchange: Exchange) -> None:
    merged, writer = MergedStreams(streams), job.writer
    while (taken := await merged.take()) is not None:
        place, response = taken
        events = writer.events(place, response)
        if not exchange.status:
            await exchange.begin_events(job.headers, writer.failure)
        if events:
            await exchange.send_events(events)
    await exchange.end_events(writer.end(stream.usage() for stream in streams))
