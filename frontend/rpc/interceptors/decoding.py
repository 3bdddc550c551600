"""Decodes request messages: large ones in turns, and those that cannot be parsed are the client's error.

grpc.aio would decode all that have arrived at once, and would report an unparsable one as an error of the
server, with the exception's text. Here a large message reaches the wrapped method as its bytes, and an
unparsable one as a sentinel value; the method itself gets neither.

The fields of a large message are counted before it is decoded. A nested message takes two bytes on the wire
and some hundred in memory: decoding 14 MiB of empty ones stopped the event loop for a second and took
750 MiB. No rule on a decoded request can prevent that, since the whole message is decoded first.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cache, partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from frontend.call.messages import LARGE_MESSAGE_BYTES, LargeMessages
from frontend.errors import Malformed, ServiceError, TooManyFields
from frontend.rpc.call_context import Context, decoded, find_caller
from frontend.rpc.error_mapping import to_grpc
from frontend.rpc.handlers import Behavior, Continuation, Handler, kind_of, wrapped

Deserializer = Callable[[bytes], Any]

_UNREADABLE = object()
"""The sentinel for a message that cannot be parsed."""
Receive = Callable[[Any], Awaitable[Any]]
"""_received(), of one method."""
MAX_FIELDS = 300_000
"""Fields of a message and of those inside it: an entry for each token of a large vocabulary, and more. A
packed list of numbers is one field."""
MAX_NESTED = 32_768
"""Messages inside a message; requests that pass validation have half as many."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Kinds of fields on the wire. The others are the ends of groups, and have no content of their own."""
_VARINT_BITS = 70
"""Of ten bytes, the longest."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Changes how requests are parsed; belongs behind authentication and the limits."""

    def __init__(self, large_messages: LargeMessages) -> None:
        self._large_messages = large_messages
        self._handlers: dict[
            str, Handler
        ] = {}  # wrapped handlers by method; bounded by the number of methods

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None or handler.request_deserializer is None:
            return handler
        method = handler_call_details.method
        if method not in self._handlers:
            self._handlers[method] = _careful(handler, self._large_messages)
        return self._handlers[method]


def _careful(handler: Handler, large_messages: LargeMessages) -> Handler:
    """Returns the handler, changed to decode large messages in turns and to reject unparsable ones."""
    read = partial(_read, handler.request_deserializer)
    received = partial(_received, partial(_read_large, handler.request_deserializer), large_messages)
    wrap = _several_messages if kind_of(handler).startswith("stream_") else _one_message
    careful = wrapped(handler, partial(wrap, received))
    return careful._replace(request_deserializer=partial(_read_small, read))


def _read(deserialize: Deserializer, data: bytes) -> Any:
    try:
        return deserialize(data)
    except DecodeError:
        return _UNREADABLE


def _read_large(deserialize: Deserializer, data: bytes) -> Any:
    """Returns the message. Raises TooManyFields."""
    message_type = getattr(deserialize, "__self__", None)  # of FromString, which all methods have
    if message_type is not None and has_too_many_fields(data, message_type.DESCRIPTOR):
        raise TooManyFields(MAX_FIELDS, MAX_NESTED)
    return _read(deserialize, data)


def _read_small(read: Deserializer, data: bytes) -> Any:
    """Returns the message, or the bytes of a large one."""
    return data if len(data) >= LARGE_MESSAGE_BYTES else read(data)


async def _received(read: Deserializer, large_messages: LargeMessages, request: Any) -> Any:
    """Returns a request that has been decoded. Raises ServiceError."""
    if isinstance(request, bytes):
        try:
            request = await large_messages.decode(read, request, find_caller())
        finally:
            decoded()
    if request is _UNREADABLE:
        raise Malformed
    return request


def _one_message(receive: Receive, behavior: Behavior) -> Behavior:
    async def decode(request: Any, context: Context) -> Any:
        try:
            request = await receive(request)
        except ServiceError as error:
            await context.abort_with_status(to_grpc(error))
        return await behavior(request, context)

    return decode


def _several_messages(receive: Receive, behavior: Behavior) -> Behavior:
    async def readable(requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Raises ServiceError: a task that reads must not end the call while another one writes. gRPC would
        send the headers twice, refuse that, and never send a status."""
        async for request in requests:
            yield await receive(request)

    # grpc.aio distinguishes coroutines from asynchronous generators.
    async def write(requests: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(readable(requests), context)

    async def generate(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        try:
            async for response in behavior(readable(requests), context):
                yield response
        except ServiceError as error:
            await context.abort_with_status(to_grpc(error))

    return generate if inspect.isasyncgenfunction(behavior) else write


class _TooMany(Exception):
    pass


def has_too_many_fields(data: bytes, descriptor: Any) -> bool:
    """Returns whether an encoded message has more than MAX_FIELDS fields, or MAX_NESTED messages inside it.

    descriptor: of the message's type. Of bytes that are no message those before count; decoding will refuse
    them.
    Takes 0.05 s for the largest message within the limits, and no more for any other.
    """
    fields_left, nested_left = MAX_FIELDS, MAX_NESTED
    parts = [(0, len(data), descriptor)]
    try:
        while parts:
            start, end, kind = parts.pop()
            found: list[tuple[int, int, Any]] = []
            fields_left = _walk(data, start, end, _nested(kind), found, fields_left, nested_left)
            nested_left -= len(found)
            parts += found
    except _TooMany:
        return True
    return False


def _walk(
    data: bytes,
    place: int,
    end: int,
    nested: dict[int, Any],
    found: list[tuple[int, int, Any]],
    fields_left: int,
    nested_left: int,
) -> int:
    """Adds the places of messages inside the one at place:end to `found`, and returns how many fields are
    left. Ends where the bytes are no message. Raises _TooMany. (One loop: a call for each number would take
    twice the time.)"""
    try:
        while place < end:
            fields_left -= 1
            if fields_left < 0 or len(found) > nested_left:
                raise _TooMany
            tag = data[place]
            place += 1
            if tag > 127:
                tag, place = _varint(data, place - 1)
            kind = tag & 7
            if kind == _BYTES:
                size = data[place]
                place += 1
                if size > 127:
                    size, place = _varint(data, place - 1)
                if tag >> 3 in nested:
                    found.append((place, place + size, nested[tag >> 3]))
                place += size
            elif kind == _VARINT:
                _, behind = _varint(data, place)
                fields_left -= behind - place - 1  # a long number takes as long as several fields
                place = behind
            elif kind == _FIXED64:
                place += 8
            elif kind == _FIXED32:
                place += 4
    except IndexError:
        pass
    return fields_left


def _varint(data: bytes, place: int) -> tuple[int, int]:
    """Returns the number at a place, and the place behind it. Raises IndexError where there is none."""
    value = shift = 0
    while shift < _VARINT_BITS:
        part = data[place]
        place += 1
        value |= (part & 127) << shift
        if part < 128:
            return value, place
        shift += 7
    raise IndexError


@cache
def _nested(descriptor: Any) -> dict[int, Any]:
    """Returns the fields of a message type that hold messages, by number: of maps, those of messages only."""
    return {
        field.number: field.message_type
        for field in descriptor.fields
        if field.message_type is not None and not _is_flat_map(field.message_type)
    }


def _is_flat_map(kind: Any) -> bool:
    return bool(kind.GetOptions().map_entry) and kind.fields_by_name["value"].message_type is None
