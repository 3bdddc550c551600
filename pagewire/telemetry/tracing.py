"""W3C trace context, and the interface of a tracer.

The exporter and its library are in otlp.py, which is imported only with --otlp-endpoint; without it, a trace
context is passed on unchanged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LONGEST_STATE = 512
"""Characters; W3C requires support for at least this many."""

Attributes = Mapping[str, str | int | float | Sequence[str]]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The two W3C headers; both empty if there is no trace."""

    traceparent: str = ""
    tracestate: str = ""


NO_TRACE = TraceContext()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a span that becomes a child span. Times are in nanoseconds since the span's start."""

    name: str
    begin: int
    end: int


class Span(Protocol):
    """A started span."""

    @property
    def context(self) -> TraceContext:
        """The context to pass to other processes."""

    def end(self, attributes: Attributes, parts: Iterable[Part], *, failed: bool) -> None:
        """Ends the span now."""


class Tracer(Protocol):
    """Starts spans."""

    def begin(self, name: str, parent: TraceContext) -> Span:
        """Starts a span now."""

    def close(self) -> None:
        """Exports what is left; may take seconds."""


def trace_id_of(traceparent: str) -> str:
    """Returns the id of a trace, 32 hexadecimal digits; "": there is none, or it is malformed."""
    return traceparent[3:35] if _TRACEPARENT.fullmatch(traceparent) else ""


def read_trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext:
    """Reads the trace context from a call's metadata. Malformed headers count as missing."""
    found = {key: value for key, value in metadata if key in ("traceparent", "tracestate")}
    parent, state = found.get("traceparent"), found.get("tracestate", "")
    if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    is_state = isinstance(state, str) and len(state) <= _LONGEST_STATE and state.isprintable()
    return TraceContext(parent, state if isinstance(state, str) and is_state else "")
