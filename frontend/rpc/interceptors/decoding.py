"""Decodes request messages: large ones in turns, and those that cannot be parsed are the client's error.

grpc.aio would decode all that have arrived at once, and would report an unparsable one as an error of the
server, with the exception's text. Here a large message reaches the wrapped method as its bytes, and an
unparsable one as a sentinel value; the method itself gets neither.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from frontend.call.messages import LARGE_MESSAGE_BYTES, LargeMessages
from frontend.errors import Malformed, ServiceError, TooManyFields
from frontend.rpc.call_context import Context, decoded, find_caller
from frontend.rpc.error_mapping import to_grpc
from frontend.rpc.handlers import Behavior, Handler, kind_of, wrapped
from frontend.rpc.message_fields import MAX_FIELDS, MAX_NESTED, has_too_many_fields

Deserializer = Callable[[bytes], Any]

_UNREADABLE = object()
"""The sentinel for a message that cannot be parsed."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Changes how requests are parsed; belongs behind authentication and the limits."""

    def __init__(self, large_messages: LargeMessages) -> None:
        self._large_messages = large_messages
        self._handlers: dict[
            str, Handler
        ] = {}  # wrapped handlers by method; bounded by the number of methods

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
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


async def _received(read: Deserializer, large_messages: LargeMessages, request: Any, context: Context) -> Any:
    """Returns a request that has been decoded, or ends the call with an error."""
    if isinstance(request, bytes):
        try:
            request = await large_messages.decode(read, request, find_caller())
        except ServiceError as error:
            await context.abort_with_status(to_grpc(error))
        finally:
            decoded()
    if request is _UNREADABLE:
        await context.abort_with_status(to_grpc(Malformed()))
    return request


Receive = Callable[[Any, Context], Awaitable[Any]]
"""_received(), of one method."""


def _one_message(receive: Receive, behavior: Behavior) -> Behavior:
    async def decode(request: Any, context: Context) -> Any:
        return await behavior(await receive(request, context), context)

    return decode


def _several_messages(receive: Receive, behavior: Behavior) -> Behavior:
    async def readable(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            yield await receive(request, context)

    # grpc.aio distinguishes coroutines from asynchronous generators.
    async def write(requests: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(readable(requests, context), context)

    async def generate(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for response in behavior(readable(requests, context), context):
            yield response

    return generate if inspect.isasyncgenfunction(behavior) else write
