"""ORCA: reports of the load, for load balancers that weigh servers by it.

Out of band xds.service.orca.v3.OpenRcaService streams them; in band the trailers of a generation have one,
where the call asks for it (frontend/rpc/interceptors/load_reports.py). The figures are those of the cores'
last heartbeats, so that a report costs the cores nothing.
"""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Any

import grpc

from frontend.call.serving_state import ServingState
from frontend.call.write_timeout import WriteTimeouts
from frontend.engine.client import EngineClient
from frontend.errors import InvalidRequest
from frontend.rpc.call_context import Context, sender
from frontend.rpc.error_mapping import guarded
from pagewire.orca import service_pb2
from pagewire.orca.load_report_pb2 import OrcaLoadReport
from pagewire.retry_after import Rate

DESCRIPTOR = service_pb2.DESCRIPTOR.services_by_name["OpenRcaService"]
SHORTEST_INTERVAL_S = 0.5
"""Between two reports: as often do the cores' heartbeats come."""
DEFAULT_INTERVAL_S = 1.0
LONGEST_INTERVAL_S = 24 * 3600


class LoadReports:
    """Makes reports of this frontend's load and its cores'."""

    def __init__(self, engine: EngineClient, clock: Callable[[], float] = monotonic) -> None:
        """clock: seconds."""
        self._engine = engine
        self._clock = clock
        self._ended = Rate()

    def ended(self) -> None:
        """Counts a generation that is over."""
        self._ended.add(1, self._clock())

    def now(self) -> OrcaLoadReport:
        """Returns the load now. Names in named_metrics are vLLM's."""
        cores = [core for core in self._engine.cores if core.serves]
        loads = [core.last_load for core in cores if core.last_load is not None]
        total = sum(load.kv_total_tokens for load in loads)
        kv_usage = sum(load.kv_used_tokens for load in loads) / total if total else 0.0
        return OrcaLoadReport(
            application_utilization=sum(core.load for core in cores) / len(cores) if cores else 0.0,
            rps_fractional=self._ended.per_second(self._clock()),
            utilization={"kv_cache": kv_usage},
            named_metrics={
                "kv_cache_usage_perc": kv_usage,
                "num_requests_running": sum(load.running_requests for load in loads),
                "num_requests_waiting": sum(load.waiting_requests for load in loads),
            },
        )


class OrcaServicer:
    """xds.service.orca.v3.OpenRcaService."""

    def __init__(self, reports: LoadReports, state: ServingState, write_timeouts: WriteTimeouts) -> None:
        self._reports = reports
        self._state = state
        self._write_timeouts = write_timeouts

    @property
    def descriptor(self) -> Any:
        """Of the service."""
        return DESCRIPTOR

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""
        handler = grpc.unary_stream_rpc_method_handler(
            self.StreamCoreMetrics,
            request_deserializer=service_pb2.OrcaLoadReportRequest.FromString,
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
