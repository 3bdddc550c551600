"""Admits calls before their messages are received: authenticates them, and holds a slot for each.

The slot is returned when the call's task ends, which includes sending the status. So clients that upload
slowly or do not read their answer hold slots, too. A request message that does not arrive in time ends its
call, and a tenant's messages arrive a few at a time. Clients without a token share the slots of one tenant:
where those are taken, by messages that perhaps never arrive, calls of public methods are answered without
theirs.
"""

import asyncio
import functools
import inspect
import ipaddress
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import Any
from urllib.parse import unquote

import grpc

from frontend.auth.authenticator import Access, Authenticator, access_of
from frontend.auth.caller import Caller
from frontend.call.messages import NO_TENANT, ReceivingSlots
from frontend.errors import AdminsOnly, ServiceError
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, find_caller, on_decoded, set_caller
from frontend.rpc.error_mapping import refusing_handler, to_grpc
from frontend.rpc.handlers import Behavior, Continuation, Handler, kind_of, wrapped
from frontend.telemetry.counters import Counters

Slot = Callable[[Caller | None], AbstractContextManager[None]]
_CALLS = frozenset(
    {
        "/pagewire.v1.GenerationService/Generate",
        "/pagewire.v1.GenerationService/GenerateUnary",
        "/pagewire.v1.PoolingService/Classify",
        "/pagewire.v1.PoolingService/Embed",
        "/pagewire.v1.PoolingService/Score",
        "/pagewire.v1.PoolingService/ScoreContinuations",
        "/pagewire.v1.TokenizerService/Tokenize",
        "/pagewire.v1.TokenizerService/Detokenize",
        "/pagewire.v1.TokenizerService/GetTokenizer",
        "/vllm.grpc.engine.VllmEngine/Embed",
        "/vllm.grpc.engine.VllmEngine/Generate",
        "/vllm.grpc.engine.VllmEngine/GetTokenizer",
        "/inference.GRPCInferenceService/ModelInfer",
        "/tei.v1.Embed/Embed",
        "/tei.v1.Embed/EmbedAll",
        "/tei.v1.Embed/EmbedSparse",
        "/tei.v1.Predict/Predict",
        "/tei.v1.Predict/PredictPair",
        "/tei.v1.Rerank/Rerank",
        "/tei.v1.Tokenize/Decode",
        "/tei.v1.Tokenize/Tokenize",
    }
)
"""Methods that count against --max-concurrent-requests."""
_STREAMS = frozenset(
    {
        "/pagewire.v1.GenerationService/GenerateMultiplexed",
        "/pagewire.v1.AdminService/WatchLoad",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ModelStreamInfer",
        "/tei.v1.Embed/EmbedAllStream",
        "/tei.v1.Embed/EmbedSparseStream",
        "/tei.v1.Embed/EmbedStream",
        "/tei.v1.Predict/PredictPairStream",
        "/tei.v1.Predict/PredictStream",
        "/tei.v1.Rerank/RerankStream",
        "/tei.v1.Tokenize/DecodeStream",
        "/tei.v1.Tokenize/TokenizeStream",
    }
)
"""Methods that may stay open without doing anything. Requests of a multiplexed stream count one by one."""
_UNLIMITED = frozenset({"/grpc.health.v1.Health/Check"})
"""Methods that must work however many calls there are: load balancers rely on them."""


class AuthInterceptor(grpc.aio.ServerInterceptor):
    """Ends a call that is not allowed with a status, whether its method exists or not."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator
        self._local: dict[str, Handler] = {}  # wrapped handlers of local-only methods, by method

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
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


def _answering_unread(handler: Handler) -> Handler:
    """Returns a handler that answers as if the request were empty, and does not receive it."""

    async def call(_: object, context: Context) -> Any:
        return await getattr(handler, kind_of(handler))(handler.request_deserializer(b""), context)

    streams = kind_of(handler).endswith("_stream")
    make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(call, response_serializer=handler.response_serializer)


class Receiving:
    """A call whose request has not been received yet, or is large and has not been decoded yet.

    gRPC keeps what has arrived of each message that is being received, up to --max-request-bytes of each. It
    begins to receive when the interceptors have returned a method, so a call waits there until it may.
    """

    def __init__(self, task: asyncio.Task[Any], counters: Counters, slots: ReceivingSlots) -> None:
        self._task = task
        self._counters = counters
        self._slots = slots
        self._tenant: str | None = None  # which one's slot is held
        self._timer: asyncio.TimerHandle | None = None
        self._has_arrived = False

    async def begin(self, caller: Caller | None, seconds: float) -> None:
        """Returns when the request may be received. The call ends if it has not been after so many seconds.

        Without authentication tenants are not told apart, and no call waits.
        """
        self._timer = asyncio.get_running_loop().call_later(seconds, self._task.cancel)
        if (tenant := caller.tenant if caller is not None else NO_TENANT) is not None:
            await self._slots.take(tenant)
            self._tenant = tenant

    def wrap(self, behavior: Behavior) -> Behavior:
        """Returns the behavior, which is called when the request has been received. While the request is the
        bytes of a large message, its slot is held until they are decoded."""

        async def call(request: object, context: Context) -> Any:
            self._arrived(request)
            return await behavior(request, context)

        return call

    def end(self) -> None:
        """Counts a call that ended before its request was received."""
        if not self._has_arrived:
            self._counters.abandoned += 1
            self._stop_timer()
        self._give_back()

    def _arrived(self, request: object) -> None:
        self._has_arrived = True
        self._stop_timer()
        size = len(request) if isinstance(request, bytes) else 0
        if self._tenant is not None:
            self._slots.arrived(self._tenant, size)
        if size:
            on_decoded(self._give_back)
        else:
            self._give_back()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _give_back(self) -> None:
        if self._tenant is not None:
            self._slots.give_back(self._tenant)
            self._tenant = None


class LimitsInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits; belongs behind authentication."""

    def __init__(self, parts: FrontendParts, receive_timeout: float) -> None:
        """receive_timeout: seconds that a request message may take to arrive."""
        self._limits, self._counters = parts.limits, parts.counters
        self._receiving_slots, self._receive_timeout = parts.receiving_slots, receive_timeout

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> Handler:
        handler = await continuation(handler_call_details)
        if handler is None:
            return handler
        task, resources = asyncio.current_task(), ExitStack()
        assert task is not None
        try:
            if (slot := self._slot_of(handler_call_details.method)) is not None:
                resources.enter_context(slot(find_caller()))
            if kind_of(handler).startswith("stream_"):
                resources.enter_context(self._limits.request_stream(find_caller()))
        except ServiceError as error:
            resources.close()
            return refusing_handler(error)
        if inspect.isasyncgenfunction(getattr(handler, kind_of(handler))):  # reflection, which is gRPC's own
            task.add_done_callback(lambda _: resources.close())
            return handler
        if find_caller() is None and not self._receiving_slots.has_room(NO_TENANT):
            task.add_done_callback(lambda _: resources.close())
            return _answering_unread(handler)
        receiving = Receiving(task, self._counters, self._receiving_slots)
        resources.callback(receiving.end)
        task.add_done_callback(lambda _: resources.close())
        if kind_of(handler).startswith("unary_"):
            await receiving.begin(find_caller(), self._receive_timeout)
        return wrapped(handler, receiving.wrap)

    def _slot_of(self, method: str) -> Slot | None:
        if method in _UNLIMITED:
            return None
        if method in _CALLS:
            return self._limits.call
        return self._limits.stream if method in _STREAMS else self._limits.control
