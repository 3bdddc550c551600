"""Reads the trace context of every call from its metadata."""

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from frontend.rpc.call_context import set_trace
from pagewire.telemetry.tracing import read_trace_context


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Stores method and trace context for the call's span."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        set_trace(method.removeprefix("/"), read_trace_context(metadata))
        return await continuation(handler_call_details)
