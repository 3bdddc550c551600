"""Runs the requests of one HTTP request on the Generator, and writes their answer."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial

from frontend.call import Call
from frontend.errors import ServiceError, SlowConsumer
from frontend.http.exchange import Exchange, event
from frontend.openai.answers import AnswerFormat, Envelope, usage_of, whole_answer
from frontend.openai.errors import error_body
from frontend.openai.fields import Names
from frontend.streams.generator import Generator
from frontend.streams.stream import Stream, wake
from pagewire.v1 import generation_pb2

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True, slots=True)
class Job:
    """What to generate, and how to answer.

    requests:         one per prompt.
    stream:           answer with server-sent events.
    include_usage:    end the stream with a chunk that has the usage.
    continuous_usage: put the usage so far into each chunk.
    """

    requests: Sequence[generation_pb2.GenerateRequest]
    form: AnswerFormat
    envelope: Envelope
    names: Names
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False


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


async def generate(generator: Generator, job: Job, call: Call, exchange: Exchange) -> None:
    """Generates and answers. Raises ServiceError before the answer has begun, and SlowConsumer; later errors
    end the stream as an event."""
    try:
        async with AsyncExitStack() as stack:
            streams = [
                await stack.enter_async_context(generator.open(request, call, whole=not job.stream))
                for request in job.requests
            ]
            if job.stream:
                await _write_events(job, streams, exchange)
            else:
                await _write_whole(job, streams, exchange)
    except SlowConsumer:
        raise
    except ServiceError as error:
        job.names.translated(error)
        if not exchange.status:
            raise
        await exchange.end_events(event(error_body(error)))


async def _write_whole(job: Job, streams: Sequence[Stream], exchange: Exchange) -> None:
    responses = []
    for stream in streams:
        response = await stream.take()
        assert response is not None  # a stream ends with a message or raises
        responses.append(response)
    await exchange.respond(200, whole_answer(job.envelope, job.form, responses))


async def _write_events(job: Job, streams: Sequence[Stream], exchange: Exchange) -> None:
    merged, kind = MergedStreams(streams), job.form.chunk_kind
    while (taken := await merged.take()) is not None:
        place, response = taken
        if not exchange.status:
            await exchange.begin_events()
        usage = usage_of([response.usage]) if job.continuous_usage else None
        chunks = [
            event(job.envelope.around(kind, [choice], usage))
            for output in response.sequences
            for choice in job.form.deltas(place, response, output)
        ]
        if chunks:
            await exchange.send_events(b"".join(chunks))
    if job.include_usage:
        usage = usage_of(stream.usage() for stream in streams)
        await exchange.end_events(event(job.envelope.around(kind, [], usage)) + DONE)
    else:
        await exchange.end_events(DONE)
