"""Exports spans to an OTLP collector over gRPC, from a thread of the OpenTelemetry library."""

import time
from collections.abc import Iterable
from urllib.parse import urlsplit

from pagewire import __version__
from pagewire.errors import StartupError, install_hint
from pagewire.telemetry.tracing import Attributes, Part, TraceContext

try:
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor
    from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
    from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
    from opentelemetry.trace import Tracer as LibraryTracer
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
except ModuleNotFoundError as error:
    raise StartupError(
        "cannot export traces",
        f"--otlp-endpoint needs {error.name}, which is not installed",
        install_hint("tracing"),
    ) from error

_EVERY_MS = 1000
"""Interval between two batches."""
_EXPORT_S = 5
"""Seconds after which the export of a batch is given up."""
_W3C = TraceContextTextMapPropagator()


class OtlpTracer:
    """Starts spans, sampled like their parents, or at a rate if they have none."""

    def __init__(self, endpoint: str, sample_rate: float, process: str) -> None:
        """endpoint: http://HOST:PORT, or https. Raises StartupError."""
        parts = urlsplit(endpoint)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise StartupError(
                "cannot export traces",
                f"--otlp-endpoint {endpoint!r} is not an address",
                "use http://HOST:PORT",
            )
        names = {"service.name": "pagewire", "service.version": __version__, "service.instance.id": process}
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES win.
        resource = Resource.create(names).merge(OTELResourceDetector().detect())
        self._provider = TracerProvider(
            sampler=ParentBased(TraceIdRatioBased(sample_rate)),
            resource=resource,
            shutdown_on_exit=False,
        )
        exporter = OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S)
        self._provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=_EVERY_MS))
        self._tracer = self._provider.get_tracer("pagewire", __version__)

    def begin(self, name: str, parent: TraceContext) -> "OtlpSpan":
        headers = {"traceparent": parent.traceparent, "tracestate": parent.tracestate}
        context = _W3C.extract({key: value for key, value in headers.items() if value})
        return OtlpSpan(self._tracer, self._tracer.start_span(name, context, SpanKind.SERVER))

    def close(self) -> None:
        self._provider.shutdown()


class OtlpSpan:
    def __init__(self, tracer: LibraryTracer, span: Span) -> None:
        self._tracer = tracer
        self._span = span
        self._began = time.monotonic_ns()
        self._context = set_span_in_context(span)

    @property
    def context(self) -> TraceContext:
        headers: dict[str, str] = {}
        _W3C.inject(headers, self._context)
        return TraceContext(headers.get("traceparent", ""), headers.get("tracestate", ""))

    def end(self, attributes: Attributes, parts: Iterable[Part], *, failed: bool) -> None:
        if not self._span.is_recording():
            self._span.end()
            return
        begin: int = getattr(self._span, "start_time")  # noqa: B009  # the API has no name for it
        length = (
            time.monotonic_ns() - self._began
        )  # as parts are measured: the wall clock may be set meanwhile
        for part in parts:
            child = self._tracer.start_span(part.name, self._context, start_time=begin + part.begin)
            child.end(begin + part.end)
            length = max(length, part.end)
        self._span.set_attributes(dict(attributes))
        if failed:
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end(begin + length)
