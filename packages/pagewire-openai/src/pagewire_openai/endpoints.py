"""The endpoints: what each path does with a request that has been admitted."""

import asyncio
import secrets
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from frontend.call.call import Call
from frontend.errors import InvalidRequest, ServiceError
from frontend.field_names import Names, renaming
from frontend.http.exchange import Exchange, Headers
from frontend.parts import FrontendParts
from frontend.streams.pooling import PoolingUsage
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream, wake
from pagewire import __version__
from pagewire.v1 import generation_pb2
from pagewire_openai.requests.chat import read_chat
from pagewire_openai.requests.completion import read_completion
from pagewire_openai.requests.fields import (
    RESPONSE_STREAM_OPTIONS,
    STREAM_OPTIONS,
    given,
    read_object,
)
from pagewire_openai.requests.messages import read_messages
from pagewire_openai.requests.response import read_response
from pagewire_openai.responses.choices import (
    AnswerFormat,
    ChatFormat,
    ChoicesWriter,
    CompletionFormat,
    Envelope,
)
from pagewire_openai.responses.messages import MessageWriter
from pagewire_openai.responses.response import ResponseFacts, ResponseWriter

T = TypeVar("T")
Json = dict[str, Any]
REQUEST_ID = "x-request-id"
"""Header with the client's name for its request; the answer has it, too."""


async def read_in_turn(
    read: Callable[[], T], parts: FrontendParts, call: Call, exchange: Exchange
) -> tuple[T, Call]:
    """Returns what read() makes of the body, in the tenant's turn unless the body is small, and the call,
    which an Abort may have ended before. Raises ServiceError."""
    name = exchange.headers.get(REQUEST_ID, "")
    return await parts.generator.in_turn(read, name, exchange.body_size, call)


async def chat_completions(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/chat/completions."""
    names = Names()
    read = partial(read_chat, body, names, parts.model.chat_template)
    request, call = await read_in_turn(read, parts, call, exchange)
    form = ChatFormat(request.output.HasField("logprobs"))
    await _choices(parts, body, [request], form, names, call, exchange)


async def responses(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/responses."""
    names = Names()
    read = partial(read_response, body, names, parts.model.chat_template)
    request, call = await read_in_turn(read, parts, call, exchange)
    read_object(given(body, "stream_options", {}), "stream_options", RESPONSE_STREAM_OPTIONS)
    request.request_id = request_id_of(exchange, names)
    sampling, default = request.sampling, parts.model.default_sampling
    facts = ResponseFacts(
        request_id=request.request_id,
        created=int(time.time()),
        model=parts.model.answering_name(request.model),
        fingerprint=parts.fingerprint,
        temperature=_decimal((sampling if sampling.HasField("temperature") else default).temperature),
        top_p=_decimal((sampling if sampling.HasField("top_p") else default).top_p),
        body=body,
    )
    job = Job([request], request.request_id, ResponseWriter(facts), names, given(body, "stream", False))
    await generate(parts, job, call, exchange)


async def messages(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/messages."""
    names = Names()
    reasons = parts.model.answers.reasons
    read = partial(read_messages, body, names, parts.model.chat_template, reasons=reasons)
    request, call = await read_in_turn(read, parts, call, exchange)
    request.request_id = request_id_of(exchange, names)
    request.output.continuous_usage = True  # the first event has that of the prompt
    writer = MessageWriter(request.request_id, parts.model.answering_name(request.model))
    job = Job([request], request.request_id, writer, names, given(body, "stream", False))
    await generate(parts, job, call, exchange)


def _decimal(value: float) -> float:
    """Returns the shortest decimal number of a float32: 0.6 for 0.6000000238418579."""
    return float(f"{value:.7g}")


async def completions(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """POST /v1/completions."""
    names = Names()
    read = partial(read_completion, body, names, parts.config.max_request_bytes)
    requests, call = await read_in_turn(read, parts, call, exchange)
    output = requests[0].output
    sequences = requests[0].sampling.n or 1
    hidden: frozenset[bytes] = frozenset()
    if not output.HasField("skip_special_tokens") or output.skip_special_tokens:
        special = parts.model.tokenizer.special_tokens.values()
        hidden = frozenset(added.content.encode() for added in special)
    form = CompletionFormat(output.HasField("logprobs"), output.echo, sequences, hidden)
    await _choices(parts, body, requests, form, names, call, exchange)


async def _choices(
    parts: FrontendParts,
    body: Json,
    requests: list[generation_pb2.GenerateRequest],
    form: AnswerFormat,
    names: Names,
    call: Call,
    exchange: Exchange,
) -> None:
    """Answers with choices."""
    stream: bool = given(body, "stream", False)
    options = read_object(given(body, "stream_options", {}), "stream_options", STREAM_OPTIONS)
    if options and not stream:
        raise InvalidRequest({"stream_options": "needs stream: true"})
    request_id = request_id_of(exchange, names)
    continuous = options.get("continuous_usage_stats", False)
    for place, request in enumerate(requests):
        request.output.continuous_usage = continuous
        request.request_id = request_id if len(requests) == 1 else f"{request_id}#{place}"
    kind = "chatcmpl" if isinstance(form, ChatFormat) else "cmpl"
    name = parts.model.answering_name(requests[0].model)
    envelope = Envelope(f"{kind}-{request_id}", int(time.time()), name, parts.fingerprint)
    usage = options.get("include_usage", False)
    writer = ChoicesWriter(envelope, form, include_usage=usage, continuous_usage=continuous)
    await generate(parts, Job(requests, request_id, writer, names, stream), call, exchange)


def request_id_of(exchange: Exchange, names: Names) -> str:
    """Returns the client's id of a request, or a new one."""
    names["request_id"] = REQUEST_ID
    return exchange.headers.get(REQUEST_ID) or secrets.token_hex(16)


def usage_of(*usages: PoolingUsage) -> Json:
    """Returns the usage of a call without output: of one that pools, or of several that are one to the
    client."""
    tokens = sum(each.prompt_tokens for each in usages)
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def list_models(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """GET /v1/models."""
    cards = [_model_card(parts, name) for name in parts.model.names]
    cards += [_adapter_card(parts, adapter.name) for adapter in parts.engine.adapters.visible(call.caller)]
    await exchange.respond(200, {"object": "list", "data": cards})


async def get_model(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """GET /v1/models/NAME."""
    name = exchange.path.removeprefix("/v1/models/")
    if name in ("", *parts.model.names):
        await exchange.respond(200, _model_card(parts, name or parts.model.name))
    else:
        await exchange.respond(200, _adapter_card(parts, parts.engine.adapters.find(name, call.caller).name))


async def version(parts: FrontendParts, body: Json, call: Call, exchange: Exchange) -> None:
    """GET /version."""
    await exchange.respond(200, {"version": __version__})


def _model_card(parts: FrontendParts, name: str) -> Json:
    return {
        "id": name,
        "object": "model",
        "created": parts.start_time,
        "owned_by": "pagewire",
        "max_model_len": parts.max_model_len,
    }


def _adapter_card(parts: FrontendParts, name: str) -> Json:
    """Returns an adapter as a model: `parent` is the model that it adapts."""
    return _model_card(parts, name) | {"parent": parts.model.name}


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
        """The headers of an answer to valid requests."""
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
    with renaming(job.names):
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
