"""The fields of log lines that belong to a request."""

from contextlib import AbstractContextManager

from pagewire.internal.v1 import engine_pb2
from pagewire.logs import fields as log_fields
from pagewire.telemetry.tracing import TraceContext, trace_id_of


def put_log_fields(request_id: str, tenant: str, trace: TraceContext) -> None:
    """Names the request of the current task in its lines from here on."""
    log_fields.put(request_id=request_id, tenant=tenant, trace_id=trace_id_of(trace.traceparent))


def about(request: engine_pb2.AddRequest) -> AbstractContextManager[None]:
    """Returns a block whose lines belong to a request that was sent to a core."""
    return log_fields.about(
        request_id=request.request_id, tenant=request.tenant, trace_id=trace_id_of(request.traceparent)
    )
