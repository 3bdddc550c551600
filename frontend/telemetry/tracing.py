"""Exports one span per request, built from its timings when it ends.

The core contributes a number (how long the request was queued) and exports nothing. It receives the trace
context with the request, for its log.
"""

import threading

from frontend.telemetry.timings import RequestTimings
from pagewire.config import FrontendConfig
from pagewire.telemetry.tracing import Part, Tracer

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
    """Returns the request's phases as consecutive parts of its span."""
    parts, begin = [], 0
    durations = timings.parts()
    for name in ("preprocess", "queue", "prefill", "decode"):
        parts.append(Part(name, begin, begin + durations[name]))
        begin += durations[name]
    return parts
