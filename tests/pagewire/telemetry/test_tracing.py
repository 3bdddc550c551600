"""What counts as a trace context."""

import pytest

from pagewire.errors import StartupError
from pagewire.telemetry.otlp import OtlpTracer
from pagewire.telemetry.tracing import NO_TRACE, TraceContext, read_trace_context

GOOD = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize("state", ["", "a=b,c=d"])
def test_headers_are_read_as_they_came(state: str):
    metadata = [("x", "y"), ("traceparent", GOOD), ("tracestate", state)]
    assert read_trace_context(metadata) == TraceContext(GOOD, state)


@pytest.mark.parametrize(
    "parent",
    [
        "",
        "00",
        GOOD.upper(),
        GOOD + "-00",
        "01" + GOOD[2:],
        "00-" + 32 * "0" + GOOD[35:],
        GOOD[:36] + 16 * "0" + "-01",
        GOOD.encode(),
        "\u0660" + GOOD[1:],
    ],
)
def test_what_is_not_one_is_none(parent: str):
    assert read_trace_context([("traceparent", parent), ("tracestate", "a=b")]) == NO_TRACE


@pytest.mark.parametrize("state", ["x" * 513, "a=\n", b"a=b"])
def test_a_bad_state_is_left_out(state: str):
    assert read_trace_context([("traceparent", GOOD), ("tracestate", state)]) == TraceContext(GOOD)


@pytest.mark.parametrize("endpoint", ["localhost:4317", "ftp://x", "http://"])
def test_an_endpoint_is_a_url(endpoint: str):
    with pytest.raises(StartupError, match="--otlp-endpoint"):
        OtlpTracer(endpoint, 1.0, "frontend")
