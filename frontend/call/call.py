"""A client's call, as the transport that accepted it describes it: gRPC today, any other tomorrow."""

from dataclasses import dataclass

from frontend.auth.caller import Caller
from pagewire.telemetry.tracing import NO_TRACE, TraceContext


@dataclass(frozen=True, slots=True)
class Call:
    """Who calls, until when the client waits, and the trace that the call belongs to.

    caller:    the authenticated caller.
    time_left: seconds until the client's deadline; None: it has none.
    method:    "package.Service/Method", or "POST /path", which names the span.
    trace:     the W3C trace context from the call's headers.
    aborted:   an Abort came while the call waited for a turn.
    """

    caller: Caller
    time_left: float | None = None
    method: str = ""
    trace: TraceContext = NO_TRACE
    aborted: bool = False
