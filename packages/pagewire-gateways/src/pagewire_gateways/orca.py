"""ORCA: reports of the load, for load balancers that weigh servers by it.

Out of band xds.service.orca.v3.OpenRcaService streams them; in band the trailers of a generation have one,
where the call asks for it as it asks vLLM: by the header `endpoint-load-metrics-format`, BIN, JSON or TEXT.
The figures are those of the cores' last heartbeats, so that a report costs the cores nothing.
"""

import asyncio
import functools
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson

from frontend.engine.client import EngineClient
from frontend.errors import InvalidRequest
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, sender
from frontend.rpc.error_mapping import guarded
from frontend.rpc.handlers import Behavior, Handler, wrapped
from frontend.streams.request_registry import Aborts
from pagewire.retry_after import Rate
from pagewire_gateways.protos import orca_service_pb2
from pagewire_gateways.protos.orca_load_report_pb2 import OrcaLoadReport

DESCRIPTOR = orca_service_pb2.DESCRIPTOR.services_by_name["OpenRcaService"]
SHORTEST_INTERVAL_S = 0.5
"""Between two reports: as often do the cores' heartbeats come."""
DEFAULT_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 24 * 3600
ASKED = "endpoint-load-metrics-format"
_METHODS = frozenset(
    {
        "/pagewire.v1.GenerationService/Generate",
        "/pagewire.v1.GenerationService/GenerateUnary",
        "/vllm.grpc.engine.VllmEngine/Generate",
    }
)


class LoadReports:
    """Makes reports of this frontend's load and its cores'."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._ended = Rate()

    def ended(self) -> None:
        """Counts a generation that is over."""
        self._ended.add(1, monotonic())

    def now(self) -> OrcaLoadReport:
        """Returns the load now. Names in named_metrics are vLLM's.

        This frontend knows its own requests at once, and all others by heartbeat: a request counts from the
        one, or until the other, so that the figures of a report agree.
        """
        cores = [core for core in self._engine.cores if core.serves]
        loads = [core.last_load for core in cores if core.last_load is not None]
        total = sum(load.kv_total_tokens for load in loads)
        kv_usage = sum(load.kv_used_tokens for load in loads) / total if total else 0.0
        waiting = sum(load.waiting_requests for load in loads)
        known, utilization = 0, 0.0
        for core in cores:
            load = core.last_load
            told = load.running_requests + load.waiting_requests if load is not None else 0
            most = core.welcome.max_num_seqs if core.welcome is not None else 1
            known += max(core.num_known, told)
            utilization += max(core.num_known, told) / max(most, 1) / len(cores)
        return OrcaLoadReport(
            application_utilization=utilization,
            rps_fractional=self._ended.per_second(monotonic()),
            utilization={"kv_cache": kv_usage},
            named_metrics={
                "kv_cache_usage_perc": kv_usage,
                "num_requests_running": known - waiting,
                "num_requests_waiting": waiting,
            },
        )


class LoadReportInterceptor(grpc.aio.ServerInterceptor):
    """Puts a report into the trailers of generations that ask for one, and counts generations. A call that
    ends by an error has no report."""

    def __init__(self, reports: LoadReports) -> None:
        self._reports = reports
        self._handlers: dict[str, Handler] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or method not in _METHODS:
            return handler
        if method not in self._handlers:
            self._handlers[method] = wrapped(handler, self._reporting)
        return self._handlers[method]

    def _reporting(self, behavior: Behavior) -> Behavior:
        @functools.wraps(behavior)
        async def call(request: object, context: Context) -> Any:
            try:
                response = await behavior(request, context)
            except grpc.aio.AbortError:
                raise  # counted, a server that refuses at once would look fast, and be sent more
            except BaseException:
                self._reports.ended()
                raise
            self._reports.ended()
            form = _asked(context)
            if form in _TRAILERS:
                context.set_trailing_metadata(
                    (*(context.trailing_metadata() or ()), _TRAILERS[form](self._reports.now()))
                )
            return response

        return call


def _asked(context: Context) -> str:
    return str(dict(context.invocation_metadata() or ()).get(ASKED, "")).upper()


def _binary(report: OrcaLoadReport) -> tuple[str, bytes]:
    return "endpoint-load-metrics-bin", report.SerializeToString()


def _json(report: OrcaLoadReport) -> tuple[str, str]:
    text = MessageToJson(report, preserving_proto_field_name=True, indent=None)
    return "endpoint-load-metrics", f"JSON {text}"


def _text(report: OrcaLoadReport) -> tuple[str, str]:
    values = [
        f"application_utilization={report.application_utilization:.6g}",
        f"rps_fractional={report.rps_fractional:.6g}",
        *(f"utilization.{name}={value:.6g}" for name, value in sorted(report.utilization.items())),
        *(f"named_metrics.{name}={value:.6g}" for name, value in sorted(report.named_metrics.items())),
    ]
    return "endpoint-load-metrics", f"TEXT {','.join(values)}"


_TRAILERS: dict[str, Callable[[OrcaLoadReport], tuple[str, str | bytes]]] = {
    "BIN": _binary,
    "JSON": _json,
    "TEXT": _text,
}


class OrcaServicer:
    """xds.service.orca.v3.OpenRcaService."""

    descriptors = (DESCRIPTOR,)

    def __init__(self, parts: FrontendParts, aborts: Aborts) -> None:
        self._reports = LoadReports(parts.engine)
        self._state, self._write_timeouts = parts.state, parts.write_timeouts
        self.interceptors = [LoadReportInterceptor(self._reports)]

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.StreamCoreMetrics,
            request_deserializer=orca_service_pb2.OrcaLoadReportRequest.FromString,
            response_serializer=OrcaLoadReport.SerializeToString,
        )
        handlers = grpc.method_handlers_generic_handler(DESCRIPTOR.full_name, {"StreamCoreMetrics": handler})
        server.add_generic_rpc_handlers((handlers,))

    @guarded
    async def StreamCoreMetrics(self, request: Any, context: Context) -> None:
        """Streams a report at once, and one per interval, until the server stops."""
        interval = _interval(request)
        with self._write_timeouts.writer(sender(context)) as writer:
            while True:  # ends by Draining
                await writer.write(self._reports.now())
                await self._state.unless_closed(asyncio.sleep(interval))


def _interval(request: Any) -> float:
    """Returns the seconds between two reports. Raises InvalidRequest."""
    seconds = request.report_interval.seconds + request.report_interval.nanos / 1e9
    if not 0 <= seconds <= LONGEST_INTERVAL_S:
        raise InvalidRequest({"report_interval": f"must be 0 to {LONGEST_INTERVAL_S} s"})
    return max(seconds, SHORTEST_INTERVAL_S) if seconds else DEFAULT_INTERVAL_S
