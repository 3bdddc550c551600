"""Writes the responses of unary methods under the write timeout.

grpc.aio sends a unary response together with the status, without a limit on the time that the client may take
to make room for it. On the wire a unary response is a stream of one message; so here it is written like one.
"""

import asyncio

import grpc

from frontend.call.write_timeout import WriteTimeouts
from frontend.errors import SlowConsumer
from frontend.rpc.call_context import Context, sender
from frontend.rpc.error_mapping import to_grpc
from frontend.rpc.handlers import Continuation, Handler


class UnaryInterceptor(grpc.aio.ServerInterceptor):
    """Should be the innermost interceptor: it changes the kind of handlers."""

    def __init__(self, write_timeouts: WriteTimeouts) -> None:
        self._write_timeouts = write_timeouts
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler, method = await continuation(handler_call_details), handler_call_details.method
        if handler is None or handler.unary_unary is None:
            return handler
        if method not in self._handlers:
            self._handlers[method] = self._writing(handler)
        return self._handlers[method]

    def _writing(self, handler: Handler) -> Handler:
        async def respond(request: object, context: Context) -> None:
            response = await handler.unary_unary(request, context)
            try:
                with self._write_timeouts.writer(sender(context)) as writer:
                    await writer.write(response)
            except SlowConsumer as error:
                await context.abort_with_status(to_grpc(error))
            except grpc.aio.AbortError:
                raise
            except grpc.aio.BaseError:
                # The client left before its response was written. gRPC would log a traceback each time.
                raise asyncio.CancelledError from None

        return grpc.unary_stream_rpc_method_handler(
            respond,
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )
