"""W3C trace context, and what a tracer has to be. Who exports, and the library for it, is in otlp.py: without
--otlp-endpoint it is not imported, and a trace context is only passed on."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

_TRACEPARENT = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_LONGEST_STATE = 512
"""Characters; W3C asks for as many at least."""

Attributes = Mapping[str, str | int | float | Sequence[str]]


@dataclass(frozen=True, slots=True)
class TraceContext:
    """The two headers of W3C; empty: there is no trace."""

    traceparent: str = ""
    tracestate: str = ""


NO_TRACE = TraceContext()


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a span's time, which becomes a span of its own. Nanoseconds since its begin."""

    name: str
    begin: int
    end: int


class Span(Protocol):
    """A span that has begun."""

    @property
    def context(self) -> TraceContext:
        """For whoever works on it elsewhere."""

    def end(self, attributes: Attributes, parts: Iterable[Part], *, failed: bool) -> None:
        """It is over, now."""


class Tracer(Protocol):
    """Begins spans."""

    def begin(self, name: str, parent: TraceContext) -> Span:
        """A span that begins now."""

    def close(self) -> None:
        """Lets out what is left; may take seconds."""


def read_trace_context(metadata: Iterable[tuple[str, str | bytes]]) -> TraceContext:
    """Of a call. What is not as W3C wants it counts as missing."""
    found = {key: value for key, value in metadata if key in ("traceparent", "tracestate")}
    parent, state = found.get("traceparent"), found.get("tracestate", "")
    if not isinstance(parent, str) or not _TRACEPARENT.fullmatch(parent):
        return NO_TRACE
    is_state = isinstance(state, str) and len(state) <= _LONGEST_STATE and state.isprintable()
    return TraceContext(parent, state if isinstance(state, str) and is_state else "")
