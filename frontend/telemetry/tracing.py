"""A request for operators: a span, built from its timings when it ends, and the fields of its log lines.

The core contributes a number (how long the request was queued) and exports nothing. It receives the trace
context with the request, for its log.
"""

import threading
from contextlib import AbstractContextManager

from frontend.telemetry.timings import RequestTimings
from pagewire import logs
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.telemetry.tracing import Part, TraceContext, Tracer, trace_id_of

_CLOSE_S = 0.5
"""Less than what a supervisor grants beyond the grace."""


def make_tracer(config: FrontendConfig) -> Tracer | None:
    """Returns a tracer for the configured collector; None when there is none. Raises StartupError."""
    if not config.otlp_endpoint:
        return None
    from pagewire.telemetry.otlp import OtlpTracer

    return OtlpTracer(config.otlp_endpoint, config.trace_sample_rate, config.process_name or "frontend")


def close_tracer(tracer: Tracer | None) -> None:
    """Flushes what is left, for at most _CLOSE_S: a collector that does not answer delays no shutdown."""
    if tracer is not None:
        closing = threading.Thread(target=tracer.close, name="tracer", daemon=True)
        closing.start()
        closing.join(_CLOSE_S)


def parts_of(timings: RequestTimings) -> list[Part]:
    """Returns the request's phases as consecutive parts of its span; pauses by preemption divide the phases
    that they fall into."""
    durations, first = timings.parts(), timings.until_first_token
    queued = durations["preprocess"] + durations["queue"]
    ends = ("preprocess", durations["preprocess"]), ("queue", queued), ("prefill", first)
    parts, begin = [], 0
    for name, end in (*ends, ("decode", durations["total"])):
        for pause_begin, pause_end in timings.pauses:
            if begin <= pause_begin and pause_end <= end:
                parts += [Part(name, begin, pause_begin), Part("preempted", pause_begin, pause_end)]
                begin = pause_end
        parts.append(Part(name, begin, end))
        begin = end
    return parts


def put_log_fields(request_id: str, tenant: str, trace: TraceContext) -> None:
    """Names the request of the current task in its lines from here on."""
    logs.put_fields(request_id=request_id, tenant=tenant, trace_id=trace_id_of(trace.traceparent))


def about(request: engine_pb2.AddRequest) -> AbstractContextManager[None]:
    """Returns a block whose lines belong to a request that was sent to a core."""
    return logs.about(
        request_id=request.request_id, tenant=request.tenant, trace_id=trace_id_of(request.traceparent)
    )
