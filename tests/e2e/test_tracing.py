"""One span per request, with its parts, at a collector that speaks OTLP."""

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2, trace_service_pb2_grpc
from opentelemetry.proto.trace.v1 import trace_pb2

from frontend.telemetry.tracing import make_tracer
from pagewire.config import FrontendConfig
from pagewire.errors import StartupError
from pagewire.local_service import Service
from pagewire.v1 import generation_pb2, generation_pb2_grpc
from tests.e2e import services

SECRET = "xyzzy plugh"
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


class Collector(trace_service_pb2_grpc.TraceServiceServicer):
    """Keeps what it is sent."""

    def __init__(self) -> None:
        self.spans: list[trace_pb2.Span] = []

    def Export(self, request, context):  # noqa: N802
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)
        return trace_service_pb2.ExportTraceServiceResponse()

    def named(self, name: str, trace: str = TRACE) -> list[trace_pb2.Span]:
        return [span for span in self.spans if (span.name, span.trace_id.hex()) == (name, trace)]


@pytest.fixture(scope="module")
def collector() -> Iterator[tuple[Collector, str]]:
    with ThreadPoolExecutor(2) as pool:
        server, collector = grpc.server(pool), Collector()
        trace_service_pb2_grpc.add_TraceServiceServicer_to_server(collector, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        yield collector, f"http://127.0.0.1:{port}"
        server.stop(None).wait()


@pytest.fixture(scope="module")
def service(collector: tuple[Collector, str]) -> Iterator[Service]:
    with services.start(
        device="simulated", profile="instant", otlp_endpoint=collector[1], trace_sample_rate=0.0
    ) as service:
        yield service


def call(service: Service, traceparent: str = "", **fields) -> None:
    metadata = [("traceparent", traceparent), ("tracestate", "v=1")] if traceparent else []
    with grpc.insecure_channel(service.address) as channel:
        stub = generation_pb2_grpc.GenerationServiceStub(channel)
        request = generation_pb2.GenerateRequest(prompt={"text": SECRET}, **fields)
        list(stub.Generate(request, metadata=metadata))


def test_a_request_is_a_span_with_its_parts(service: Service, collector: tuple[Collector, str]):
    call(service, f"00-{TRACE}-{PARENT}-01", stopping={"max_tokens": 7, "ignore_eos": True})
    name = "pagewire.v1.GenerationService/Generate"
    services.wait_until(lambda: bool(collector[0].named(name)))
    (span,) = collector[0].named(name)
    assert span.parent_span_id.hex() == PARENT and span.trace_state == "v=1"
    assert span.kind == trace_pb2.Span.SPAN_KIND_SERVER
    values = {each.key: each.value for each in span.attributes}
    assert values["gen_ai.usage.output_tokens"].int_value == 7
    assert values["gen_ai.usage.input_tokens"].int_value > 0
    assert values["rpc.response.status_code"].string_value == "OK"
    assert values["gen_ai.response.finish_reasons"].array_value.values[0].string_value == "max_tokens"
    services.wait_until(lambda: bool(collector[0].named("decode")))
    parts = [collector[0].named(part)[0] for part in ("preprocess", "queue", "prefill", "decode")]
    assert all(part.parent_span_id == span.span_id for part in parts)
    for before, after in zip(parts, parts[1:], strict=False):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    assert span.start_time_unix_nano == parts[0].start_time_unix_nano
    assert parts[-1].end_time_unix_nano <= span.end_time_unix_nano


def test_a_refusal_is_an_error(service: Service, collector: tuple[Collector, str]):
    trace = TRACE[::-1]
    with pytest.raises(grpc.RpcError):
        call(service, f"00-{trace}-{PARENT}-01", sampling={"temperature": -1})
    name = "pagewire.v1.GenerationService/Generate"
    services.wait_until(lambda: bool(collector[0].named(name, trace)))
    (span,) = collector[0].named(name, trace)
    assert span.status.code == trace_pb2.Status.STATUS_CODE_ERROR
    assert {each.key: each.value.string_value for each in span.attributes}["error.type"] == "INVALID_FIELD"


def test_unsampled_requests_are_not_exported(service: Service, collector: tuple[Collector, str]):
    """Neither with an unsampled parent, nor without a parent at rate 0."""
    unsampled, last = "1" * 32, "2" * 32
    call(service, f"00-{unsampled}-{PARENT}-00", stopping={"max_tokens": 1})
    call(service, stopping={"max_tokens": 1})
    call(service, f"00-{last}-{PARENT}-01", stopping={"max_tokens": 1})
    services.wait_until(lambda: any(span.trace_id.hex() == last for span in collector[0].spans))
    assert {span.trace_id.hex() for span in collector[0].spans} <= {TRACE, TRACE[::-1], last}


def test_spans_contain_no_prompts(service: Service, collector: tuple[Collector, str]):
    text = " ".join(map(str, collector[0].spans))
    assert text and not any(word in text for word in SECRET.split())


def test_a_missing_library_is_reported(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delitem(sys.modules, "pagewire.telemetry.otlp", raising=False)
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(StartupError, match="opentelemetry") as error:
        make_tracer(FrontendConfig(otlp_endpoint="http://127.0.0.1:1"))
    assert ".[tracing]" in error.value.todo


def test_without_an_endpoint_there_is_no_tracer():
    assert make_tracer(FrontendConfig()) is None
