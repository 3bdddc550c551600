"""Counts every call to the gRPC server, under the metric names of go-grpc, so that dashboards work, and reads
the trace context of every call."""

import asyncio
import functools
import time
from typing import Any

import grpc
from google.protobuf.descriptor import ServiceDescriptor

from frontend.rpc.call_context import Context, set_trace
from frontend.rpc.error_mapping import without_frames
from frontend.rpc.handlers import Behavior, Continuation, Handler, wrapped
from frontend.telemetry.counters import Counters, Rpc
from pagewire.telemetry.figures import REQUEST_SECONDS, Histogram
from pagewire.telemetry.tracing import read_trace_context

_CODES = {code.value[0]: "".join(map(str.title, code.name.split("_"))) for code in grpc.StatusCode}
_CODES[0], _CODES[1] = "OK", "Canceled"  # as Go spells them


class MetricsInterceptor(grpc.aio.ServerInterceptor):
    """The outermost interceptor: calls that others refuse are counted, too. Unknown methods are not."""

    def __init__(self, services: list[ServiceDescriptor], counters: Counters) -> None:
        self._counters = counters
        self._methods = {
            f"/{service.full_name}/{method.name}": (_type_of(method), service.full_name, method.name)
            for service in services
            for method in service.methods
        }
        for rpc in self._methods.values():
            counters.started[rpc] = 0  # so that rates include the first call

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(handler_call_details)
        rpc = self._methods.get(handler_call_details.method)
        if handler is None or rpc is None:
            return handler
        return wrapped(handler, lambda behavior: self._counted(behavior, rpc))

    def _counted(self, behavior: Behavior, rpc: Rpc) -> Behavior:
        """Returns the counting method. All methods of this server are coroutines, also those that stream."""

        @functools.wraps(behavior)
        async def call(request: object, context: Context) -> Any:
            counters, began = self._counters, time.monotonic()
            counters.started[rpc] += 1
            code = "Unknown"
            try:
                response = await behavior(request, context)
                code = _code_of(context)
                return response
            except asyncio.CancelledError:
                left = context.time_remaining()
                code = "DeadlineExceeded" if left is not None and left <= 0 else "Canceled"
                raise
            except grpc.aio.AbortError as error:
                code, request = _code_of(context), None
                raise without_frames(error)  # noqa: B904 - a cause would keep the frames
            finally:
                counters.handled[(*rpc, code)] += 1
                if rpc not in counters.handling:
                    counters.handling[rpc] = Histogram(REQUEST_SECONDS)
                counters.handling[rpc].observe(time.monotonic() - began)

        return call


def _code_of(context: Context) -> str:
    code: Any = context.code()  # None, an integer or a StatusCode, contrary to its type
    if code is None:
        return "OK"
    return _CODES.get(code.value[0] if isinstance(code, grpc.StatusCode) else code, "Unknown")


def _type_of(method: Any) -> str:
    if method.client_streaming:
        return "bidi_stream" if method.server_streaming else "client_stream"
    return "server_stream" if method.server_streaming else "unary"


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Stores method and trace context for the call's span."""

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        set_trace(method.removeprefix("/"), read_trace_context(metadata))
        return await continuation(handler_call_details)
