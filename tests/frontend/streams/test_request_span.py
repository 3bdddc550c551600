"""What became of a request is counted once, however it ends."""

import asyncio
import contextlib
import time
from array import array
from collections.abc import Iterable
from typing import Any

import pytest

from frontend.auth.caller import ANONYMOUS
from frontend.call.call import Call
from frontend.errors import EngineDead, InvalidRequest
from frontend.streams.request_span import RequestSpan
from frontend.streams.sequence import OutputFields, Sequence
from frontend.streams.stream import DeliveryMode, Header, Stream
from frontend.telemetry.counters import Counters
from pagewire.telemetry.tracing import Attributes, Part, TraceContext
from pagewire.v1 import generation_pb2

LENGTH = generation_pb2.FINISH_REASON_MAX_TOKENS
MS = 1_000_000
REQUEST = generation_pb2.GenerateRequest(prompt={"chat": {}}, stopping={"max_tokens": 4}, sampling={"n": 2})


class Span:
    context = TraceContext("of our own")

    def end(self, attributes: Attributes, parts: Iterable[Part], *, failed: bool) -> None:
        self.attributes, self.parts, self.failed = attributes, list(parts), failed


class Tracer:
    def __init__(self) -> None:
        self.span = Span()
        self.begun: list[tuple[str, TraceContext]] = []

    def begin(self, name: str, parent: TraceContext) -> Span:
        self.begun.append((name, parent))
        return self.span

    def close(self) -> None: ...


def stream_of(span: RequestSpan, adapter: str = "") -> Stream:
    wanted: dict[str, Any] = {"text": False, "token_ids": True, "token_bytes": None, "cumulative": False}
    wanted |= {"include_stop": False, "min_tokens": 0, "logprobs": False, "likelihood": False}
    sequence = Sequence(0, OutputFields(**wanted), None, None, "")
    applied = generation_pb2.AppliedAdapter(name=adapter) if adapter else None
    stream = Stream(Header("id", "fake", 7, 3, adapter=applied), DeliveryMode(), [sequence], span.timings)
    span.begin(stream)
    return stream


async def test_one_that_finishes_is_counted_with_its_times_and_tokens():
    counters, tracer = Counters(), Tracer()
    parent = TraceContext("of the client")
    with RequestSpan(counters, tracer, Call(ANONYMOUS, method="a/B", trace=parent), REQUEST) as span:
        assert span.trace == Span.context and tracer.begun == [("a/B", parent)]
        stream = stream_of(span)
        span.timings.sent()
        now = time.monotonic_ns()
        stream.push(0, 0, array("I", [5]), 0, 0, now)
        await stream.take()
        stream.push(0, 1, array("I", [6, 7, 8]), LENGTH, 0, now + 6 * MS)
        await stream.take()
    assert counters.outcomes == {"finished": 1} and counters.finishes == {"max_tokens": 1}
    assert (counters.prompt_tokens, counters.generated_tokens, counters.messages) == (3, 4, 2)
    assert counters.inter_token_seconds.count == 3
    assert counters.inter_token_seconds.sum == pytest.approx(0.006)
    assert counters.request_seconds.count == counters.decode_seconds.count == 1
    assert tracer.span.attributes["gen_ai.usage.output_tokens"] == 4 and not tracer.span.failed
    assert [part.name for part in tracer.span.parts] == ["preprocess", "queue", "prefill", "decode"]


async def test_one_with_an_adapter_is_counted_for_it():
    counters = Counters()
    for name in ("legal", "", "legal"):
        with RequestSpan(counters, None, Call(ANONYMOUS), REQUEST) as span:
            stream = stream_of(span, name)
            stream.push(0, 0, array("I", [5, 6]), LENGTH, 0, time.monotonic_ns())
            await stream.take()
    assert counters.adapter_requests == {"legal": 2} and counters.prompt_tokens == 9
    assert counters.adapter_tokens == {("legal", "prompt"): 6, ("legal", "generated"): 4}


async def test_one_that_is_refused_has_a_reason():
    counters, tracer = Counters(), Tracer()
    with pytest.raises(InvalidRequest), RequestSpan(counters, tracer, Call(ANONYMOUS), REQUEST):
        raise InvalidRequest({"n": "too many"})
    assert counters.outcomes == {"refused": 1} and counters.refusals == {"INVALID_FIELD": 1}
    assert tracer.span.failed and not tracer.span.parts
    assert tracer.span.attributes["rpc.response.status_code"] == "INVALID_ARGUMENT"
    asked = {name: value for name, value in tracer.span.attributes.items() if "gen_ai" in name}
    assert asked == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "pagewire",
        "gen_ai.request.choice.count": 2,
        "gen_ai.request.max_tokens": 4,
    }


@pytest.mark.parametrize(
    ("error", "has_begun", "status"),
    [
        (None, True, 200),
        (InvalidRequest({"n": "too many"}), False, 400),
        (ZeroDivisionError(), False, 500),
        (EngineDead(), True, 200),
        (asyncio.CancelledError(), True, None),
    ],
)
async def test_http_has_the_status_that_was_sent(
    error: BaseException | None, has_begun: bool, status: int | None
):
    tracer, request = Tracer(), generation_pb2.GenerateRequest(prompt={"text": "hi"})
    call = Call(ANONYMOUS, method="POST /v1/completions")
    expected = contextlib.suppress(type(error or ValueError()))
    with expected, RequestSpan(Counters(), tracer, call, request) as span:
        if has_begun:
            stream = stream_of(span)
            stream.push(0, 0, array("I", [5]), 0, 0, time.monotonic_ns())
            await stream.take()
        if error is not None:
            raise error
    attributes = tracer.span.attributes
    assert attributes.get("http.response.status_code") == status
    assert (attributes["http.request.method"], attributes["http.route"]) == ("POST", "/v1/completions")
    assert attributes["gen_ai.operation.name"] == "text_completion"
    assert attributes.get("gen_ai.response.id") == ("id" if has_begun else None)


async def test_one_that_breaks_off_has_failed():
    counters = Counters()
    with pytest.raises(EngineDead), RequestSpan(counters, None, Call(ANONYMOUS), REQUEST) as span:
        stream = stream_of(span)
        stream.push(0, 0, array("I", [5]), 0, 0, time.monotonic_ns())
        await stream.take()
        raise EngineDead
    assert counters.outcomes == {"failed": 1} and counters.failures == {"ENGINE_DEAD": 1}
    assert counters.request_seconds.count == 1


@pytest.mark.parametrize(
    ("error", "outcome"),
    [(asyncio.CancelledError, "cancelled"), (GeneratorExit, "cancelled"), (ZeroDivisionError, "refused")],
)
def test_the_others(error: type[BaseException], outcome: str):
    counters = Counters()
    with pytest.raises(error), RequestSpan(counters, None, Call(ANONYMOUS), REQUEST):
        raise error
    assert counters.outcomes == {outcome: 1}
