"""The trace that a call belongs to: from its metadata into a span of ours, and on to the core.

The interceptor leaves what it has read in a context variable, which is the RPC's own, as the gate does with
the caller. The span of a request and its parts are made when it is over, from the ledger of its times, which
the core has its share in (how long a request waited there). So the core has nothing to export; it gets the
context with the request, for whatever it says of it.
"""

import threading
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import grpc

from frontend.telemetry.timings import Ledger
from pagewire.config import FrontendConfig
from pagewire.telemetry.tracing import NO_TRACE, Part, TraceContext, Tracer, read_trace_context

_CLOSE_S = 0.5
"""Less than what a supervisor grants beyond the grace."""


class Call(NamedTuple):
    """An RPC: its method, as gRPC names it, and where it stands in a trace."""

    method: str = ""
    trace: TraceContext = NO_TRACE


NO_CALL = Call()
_current: ContextVar[Call] = ContextVar("call", default=NO_CALL)


def current_call() -> Call:
    """That runs here."""
    return _current.get()


class TraceInterceptor(grpc.aio.ServerInterceptor):
    """Reads the trace context of each call."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method, metadata = handler_call_details.method, handler_call_details.invocation_metadata
        _current.set(Call(method.removeprefix("/"), read_trace_context(metadata)))
        return await continuation(handler_call_details)


def make_tracer(config: FrontendConfig) -> Tracer | None:
    """None: nobody collects. Raises StartupError."""
    if not config.otlp_endpoint:
        return None
    from pagewire.telemetry.otlp import OtlpTracer

    return OtlpTracer(config.otlp_endpoint, config.trace_sample_rate, config.process_name or "frontend")


def close_tracer(tracer: Tracer | None) -> None:
    """Lets out what is left, if that is soon; a collector that is gone holds nobody up."""
    if tracer is not None:
        closing = threading.Thread(target=tracer.close, name="tracer", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def parts_of(ledger: Ledger) -> list[Part]:
    """A request's times, one after another."""
    parts, begin = [], 0
    durations = ledger.parts()
    for name in ("preprocess", "queue", "prefill", "decode"):
        parts.append(Part(name, begin, begin + durations[name]))
        begin += durations[name]
    return parts
