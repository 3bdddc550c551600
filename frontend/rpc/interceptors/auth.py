"""Authenticates every call before its message is received."""

import functools
import ipaddress
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from frontend.auth.authenticator import Access, Authenticator, access_of
from frontend.errors import AdminsOnly, ServiceError
from frontend.rpc.call_context import Context, set_caller
from frontend.rpc.error_mapping import refusing_handler, to_grpc
from frontend.rpc.handlers import Behavior, Handler, wrapped


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call that is not allowed with a status, whether its method exists or not."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._local: dict[str, Handler] = {}  # wrapped handlers of local-only methods, by method

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        method = handler_call_details.method
        authenticate = partial(
            self._authenticator.authenticate, method, handler_call_details.invocation_metadata
        )
        try:
            caller = authenticate()
        except ServiceError as error:
            return refusing_handler(error)
        if caller is not None:
            set_caller(caller, authenticate)
        handler = await continuation(handler_call_details)
        is_shielded = access_of(method) in (Access.ADMINS, Access.TENANTS)
        if handler is None or not self._authenticator.admins_are_local or not is_shielded:
            return handler
        if method not in self._local:  # bounded by the number of methods
            self._local[method] = _local_only(handler)
        return self._local[method]


def is_local(peer: str) -> bool:
    """True when a peer, as gRPC names it ("ipv4:127.0.0.1:4711"), is on this machine."""
    kind, _, rest = unquote(peer).partition(":")
    if kind in ("unix", "unix-abstract"):
        return True
    try:
        address = ipaddress.ip_address(rest.rpartition(":")[0].strip("[]"))
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback


def _local_only(handler: Handler) -> Handler:
    """Restricts a handler to peers on this machine: without tokens, nothing else marks an operator."""

    def checked(behavior: Behavior) -> Behavior:
        @functools.wraps(behavior)
        async def check(request: object, context: Context) -> Any:
            if not is_local(context.peer()):
                error = AdminsOnly("this is for operators on the server's machine, or with an admin's token")
                await context.abort_with_status(to_grpc(error))
            return await behavior(request, context)

        return check

    return wrapped(handler, checked)
