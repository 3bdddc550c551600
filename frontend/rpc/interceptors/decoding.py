"""Rejects request messages that cannot be parsed as the client's error.

grpc.aio would report them as an error of the server, with the exception's text. Here an unparsable message
becomes a sentinel value, for which the method is never called.
"""

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError

from frontend.errors import Malformed
from frontend.rpc.call_context import Context
from frontend.rpc.error_mapping import to_grpc
from frontend.rpc.handlers import Behavior, Handler, kind_of, wrapped

_UNREADABLE = object()
"""The sentinel for a message that cannot be parsed."""


class DecodingInterceptor(grpc.aio.ServerInterceptor):
    """Changes how requests are parsed; should be the innermost interceptor."""

    def __init__(self) -> None:
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
            self._handlers[method] = _careful(handler)
        return self._handlers[method]


def _careful(handler: Handler) -> Handler:
    """Returns the handler, changed to reject unparsable messages."""
    wrap = _several_messages if kind_of(handler).startswith("stream_") else _one_message
    careful = wrapped(handler, wrap)
    return careful._replace(request_deserializer=_forgiving(handler.request_deserializer))


def _forgiving(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return deserialize(data)
        except DecodeError:
            return _UNREADABLE

    return read


def _one_message(behavior: Behavior) -> Behavior:
    async def check(request: Any, context: Context) -> Any:
        if request is _UNREADABLE:
            await context.abort_with_status(to_grpc(Malformed()))
        return await behavior(request, context)

    return check


def _several_messages(behavior: Behavior) -> Behavior:
    async def readable(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for request in requests:
            if request is _UNREADABLE:
                await context.abort_with_status(to_grpc(Malformed()))
            yield request

    # grpc.aio distinguishes coroutines from asynchronous generators.
    async def write(requests: AsyncIterator[Any], context: Context) -> Any:
        return await behavior(readable(requests, context), context)

    async def generate(requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        async for response in behavior(readable(requests, context), context):
            yield response

    return generate if inspect.isasyncgenfunction(behavior) else write
