"""The gate in front of the gRPC server."""

import functools
import ipaddress
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from frontend.auth.authenticator import Access, Gate, access_of
from frontend.auth.caller import set_caller
from frontend.errors import AdminsOnly, ServiceError, to_grpc
from frontend.rpc.error_mapping import Context
from frontend.rpc.handlers import Behavior, Handler, wrapped


class GateInterceptor(grpc.aio.ServerInterceptor):
    """Asks the gate about every call, before its message is received. One that may not come in ends with a
    status, whether its method exists or not."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._local: dict[str, Handler] = {}  # handlers of methods for this machine, wrapped

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        ask = partial(self._gate.admit, method, handler_call_details.invocation_metadata)
        try:
            caller = ask()
        except ServiceError as error:
            return _refuse(error)
        if caller is not None:
            set_caller(caller, ask)
        handler = await continuation(handler_call_details)
        if handler is None or not self._gate.admins_are_local or access_of(method) is not Access.ADMINS:
            return handler
        if method not in self._local:  # there are as many as methods exist
            self._local[method] = _for_this_machine(handler)
        return self._local[method]


def is_local(peer: str) -> bool:
    """Whether a peer, as gRPC names it ("ipv4:127.0.0.1:4711"), is on this machine."""
    kind, _, rest = unquote(peer).partition(":")
    if kind in ("unix", "unix-abstract"):
        return True
    try:
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _refuse(error: ServiceError) -> Handler:
    """A handler for calls of any kind; it does not read what the client sends."""

    async def refuse(_: object, context: Context) -> None:
        await context.abort_with_status(to_grpc(error))

    return grpc.stream_stream_rpc_method_handler(refuse)


def _for_this_machine(handler: Handler) -> Handler:
    """The same, for peers on this machine: without tokens nobody else can be told from an operator."""

    def checked(behavior: Behavior) -> Behavior:
        @functools.wraps(behavior)
        async def check(request: object, context: Context) -> Any:
            if not is_local(context.peer()):
                error = AdminsOnly("this is for operators on the server's machine, or with an admin's token")
                await context.abort_with_status(to_grpc(error))
            return await behavior(request, context)

        return check

    return wrapped(handler, checked)
