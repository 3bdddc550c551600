"""Carries what the interceptors find out about a call to the method that serves it.

gRPC runs interceptors and method in one task, so context variables belong to one call. A servicer turns
them into a Call once; below the servicers a Call is an argument like any other. Without the interceptor
there is no caller, and a method that asks for one fails instead of serving everyone.
"""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import grpc

from frontend.auth.caller import Caller
from frontend.call.call import Call
from frontend.call.write_timeout import Send
from pagewire import logs
from pagewire.telemetry.tracing import NO_TRACE, TraceContext, trace_id_of

Context = grpc.aio.ServicerContext[Any, Any]

_caller: ContextVar[Caller] = ContextVar("caller")
_authenticate: ContextVar[Callable[[], Caller | None]] = ContextVar("authenticate")
_decoded: ContextVar[Callable[[], None] | None] = ContextVar("decoded", default=None)
_trace: ContextVar[tuple[str, TraceContext]] = ContextVar("trace", default=("", NO_TRACE))


def set_caller(caller: Caller, authenticate: Callable[[], Caller | None] | None = None) -> None:
    """Stores the call's caller. authenticate: repeats the check; raises Unauthenticated,
    PermissionDenied."""
    _caller.set(caller)
    _authenticate.set(authenticate or (lambda: caller))
    logs.put_fields(tenant=caller.tenant)


def set_trace(method: str, trace: TraceContext) -> None:
    """Stores the call's method ("package.Service/Method") and trace context."""
    _trace.set((method, trace))
    logs.put_fields(trace_id=trace_id_of(trace.traceparent))


def on_decoded(callback: Callable[[], None]) -> None:
    """Stores what decoded() calls."""
    _decoded.set(callback)


def decoded() -> None:
    """Says that the request message of the current call has been decoded, or refused undecoded."""
    if (callback := _decoded.get()) is not None:
        callback()


def current_caller() -> Caller:
    """Returns the caller of the current call. Raises LookupError when no interceptor has set one."""
    return _caller.get()


def find_caller() -> Caller | None:
    """Returns the caller of the current call; None when its method is public."""
    return _caller.get(None)


def current_call(context: Context) -> Call:
    """Returns the current call. Raises LookupError when no interceptor has set its caller."""
    return Call(current_caller(), context.time_remaining(), *_trace.get())


def reauthenticated_call(context: Context) -> Call:
    """Returns the current call after checking its token once more: a call may stay open for days, and a
    revoked token must not start another request. Raises LookupError, Unauthenticated, PermissionDenied."""
    caller = _authenticate.get()()
    return Call(caller or current_caller(), context.time_remaining(), *_trace.get())


def sender(context: Context) -> Send:
    """Returns a function that sends messages of the call.

    Headers go out on their own before the first message: sent together with a message that the client's
    flow-control window holds back, they would keep a status from being sent, too.
    """
    begun = False

    async def send(message: Any) -> None:
        nonlocal begun
        if not begun:
            begun = True
            await context.send_initial_metadata(())
        await context.write(message)

    return send
