"""Observes one request for operators: its outcome and where its time went, as metrics and as a span."""

import asyncio
from types import TracebackType
from typing import Self

from google.rpc import code_pb2

from frontend.call.call import Call
from frontend.errors import InternalError, ServiceError
from frontend.streams.stream import Stream
from frontend.telemetry.counters import Counters
from frontend.telemetry.timings import RequestTimings
from frontend.telemetry.tracing import parts_of
from pagewire.telemetry.figures import REQUEST_SECONDS, Histogram
from pagewire.telemetry.tracing import Attributes, Tracer
from pagewire.v1 import generation_pb2


class RequestSpan:
    """A context from a request's arrival to its end; the exception that leaves it tells the outcome."""

    def __init__(
        self, counters: Counters, tracer: Tracer | None, call: Call, request: generation_pb2.GenerateRequest
    ) -> None:
        """tracer: exports a span; None: only metrics. request: not checked yet."""
        self.timings = RequestTimings(counters)
        self.trace = call.trace
        """The trace context that the core gets."""
        self._counters = counters
        self._method = call.method
        self._request = request
        self._stream: Stream | None = None
        self._span = tracer.begin(call.method or "generate", call.trace) if tracer is not None else None
        if self._span is not None:
            self.trace = self._span.context

    def begin(self, stream: Stream) -> None:
        """Attaches the request's stream."""
        self._stream = stream

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _: type[BaseException] | None, error: BaseException | None, __: TracebackType | None
    ) -> None:
        outcome = self._outcome(error)
        self._counters.outcomes[outcome] += 1
        if self._span is not None:
            parts = parts_of(self.timings) if self.timings.has_tokens else []
            self._span.end(self._attributes(outcome, error), parts, failed=outcome in ("failed", "refused"))
        if self._stream is not None:
            self._count_tokens(self._stream)
            if self.timings.has_tokens:
                self._count_times()

    def _outcome(self, error: BaseException | None) -> str:
        if error is None:
            return "finished"
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            return "cancelled"
        reason = error.reason if isinstance(error, ServiceError) else "INTERNAL"
        if self.timings.num_messages:
            self._counters.failures[reason] += 1
            return "failed"
        self._counters.refusals[reason] += 1
        return "refused"

    def _attributes(self, outcome: str, error: BaseException | None) -> Attributes:
        """Returns the span's attributes by OpenTelemetry's conventions. No text, no tokens."""
        attributes: dict[str, str | int | float | list[str]] = {
            **self._protocol_attributes(outcome, error),
            **_asked(self._request),
            "gen_ai.provider.name": "pagewire",
            "pagewire.outcome": outcome,
        }
        if isinstance(error, ServiceError):
            attributes["error.type"] = error.reason
        if self._stream is not None:
            usage = self._stream.usage()
            attributes |= {
                "gen_ai.request.model": self._stream.model,
                "gen_ai.response.model": self._stream.model,
                "gen_ai.response.id": self._stream.request_id,
                "gen_ai.usage.input_tokens": usage.prompt_tokens,
                "gen_ai.usage.cache_read.input_tokens": usage.cached_prompt_tokens,
                "gen_ai.usage.output_tokens": usage.completion_tokens,
                "gen_ai.response.finish_reasons": _names(self._stream),
            }
        for cause, nanoseconds in _causes(self.timings).items():
            attributes[f"pagewire.wait.{cause}"] = nanoseconds / 1e9
        return attributes

    def _protocol_attributes(self, outcome: str, error: BaseException | None) -> dict[str, str | int]:
        """Returns those of the transport. A client that goes away gets no status over HTTP."""
        verb, _, route = self._method.partition(" ")
        if not route:
            status = _status_of(outcome, error)
            return {"rpc.system.name": "grpc", "rpc.method": verb, "rpc.response.status_code": status}
        attributes: dict[str, str | int] = {"http.request.method": verb, "http.route": route}
        if outcome == "refused":
            attributes["http.response.status_code"] = (
                error.http_status if isinstance(error, ServiceError) else InternalError().http_status
            )
        elif outcome != "cancelled":  # a stream that fails has begun with 200
            attributes["http.response.status_code"] = 200
        return attributes

    def _count_tokens(self, stream: Stream) -> None:
        counters, usage = self._counters, stream.usage()
        counters.prompt_tokens += usage.prompt_tokens
        counters.cached_tokens += usage.cached_prompt_tokens
        if stream.adapter:
            counters.count_adapter(stream.adapter, usage.prompt_tokens, usage.completion_tokens)
        counters.request_prompt_tokens.observe(usage.prompt_tokens)
        counters.request_generated_tokens.observe(usage.completion_tokens)
        for name in _names(stream):
            counters.finishes[name] += 1

    def _count_times(self) -> None:
        counters, seconds = self._counters, self.timings.parts()
        counters.request_seconds.observe(seconds["total"] / 1e9)
        counters.first_token_seconds.observe(self.timings.until_first_token / 1e9)
        counters.preprocess_seconds.observe(seconds["preprocess"] / 1e9)
        counters.queue_seconds.observe(seconds["queue"] / 1e9)
        counters.prefill_seconds.observe(seconds["prefill"] / 1e9)
        counters.decode_seconds.observe(seconds["decode"] / 1e9)
        for cause, nanoseconds in _causes(self.timings).items():
            if cause not in counters.wait_seconds:
                counters.wait_seconds[cause] = Histogram(REQUEST_SECONDS)
            counters.wait_seconds[cause].observe(nanoseconds / 1e9)


def _causes(timings: RequestTimings) -> dict[str, int]:
    """Returns the nanoseconds that a request waited, by cause; those for which it did."""
    waits = timings.waits() | {"preempted": timings.parts()["preempted"]}
    return {cause: nanoseconds for cause, nanoseconds in waits.items() if nanoseconds}


def _names(stream: Stream) -> list[str]:
    """Returns the finish reasons of a stream's sequences."""
    names = map(generation_pb2.FinishReason.Name, stream.finish_reasons())
    return [name.removeprefix("FINISH_REASON_").lower() for name in names]


def _asked(request: generation_pb2.GenerateRequest) -> dict[str, str | int]:
    """Returns the attributes that a request has before it is checked."""
    is_chat = request.prompt.WhichOneof("kind") == "chat"
    found: dict[str, str | int] = {"gen_ai.operation.name": "chat" if is_chat else "text_completion"}
    if request.sampling.n > 1:
        found["gen_ai.request.choice.count"] = request.sampling.n
    if request.stopping.HasField("max_tokens"):
        found["gen_ai.request.max_tokens"] = request.stopping.max_tokens
    return found


def _status_of(outcome: str, error: BaseException | None) -> str:
    if isinstance(error, ServiceError):
        return str(code_pb2.Code.Name(error.code))
    return {"finished": "OK", "cancelled": "CANCELLED"}.get(outcome, "INTERNAL")
