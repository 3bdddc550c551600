"""Puts a report of the load into the trailers of generations that ask for one, and counts generations.

A call asks by the header `endpoint-load-metrics-format`, as it asks vLLM: BIN, JSON or TEXT.
"""

import functools
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.json_format import MessageToJson

from frontend.rpc.call_context import Context
from frontend.rpc.handlers import Behavior, Handler, wrapped
from frontend.servicers.orca import LoadReports
from pagewire.orca.load_report_pb2 import OrcaLoadReport

ASKED = "endpoint-load-metrics-format"
_METHODS = frozenset(
    {
        "/pagewire.v1.GenerationService/Generate",
        "/pagewire.v1.GenerationService/GenerateUnary",
        "/vllm.grpc.engine.VllmEngine/Generate",
    }
)


class LoadReportInterceptor(grpc.aio.ServerInterceptor):
    """A call that ends by an error has no report."""

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
