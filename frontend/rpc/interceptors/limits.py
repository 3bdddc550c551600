"""Holds a slot of ConcurrencyLimits for every call.

The slot is taken before the request message is received and returned when the call's task ends, which
includes sending the status. So clients that upload slowly or do not read their answer hold slots, too. A
request message that does not arrive in time ends its call, and a tenant's messages arrive a few at a time.
Clients without a token share the slots of one tenant: where those are taken, by messages that perhaps never
arrive, calls of public methods are answered without theirs.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import grpc

from frontend.auth.caller import Caller
from frontend.call.limits import ConcurrencyLimits
from frontend.call.messages import NO_TENANT, ReceivingSlots
from frontend.errors import ServiceError
from frontend.rpc.call_context import Context, find_caller
from frontend.rpc.error_mapping import refusing_handler
from frontend.rpc.handlers import Handler, kind_of, wrapped
from frontend.rpc.receiving import Receiving
from frontend.telemetry.counters import Counters

Slot = Callable[[Caller | None], AbstractContextManager[None]]

_CALLS = frozenset(
    {
        "/pagewire.v1.GenerationService/Generate",
        "/pagewire.v1.GenerationService/GenerateUnary",
        "/pagewire.v1.PoolingService/Embed",
        "/pagewire.v1.PoolingService/ScoreContinuations",
        "/pagewire.v1.TokenizerService/Tokenize",
        "/pagewire.v1.TokenizerService/Detokenize",
        "/pagewire.v1.TokenizerService/GetTokenizer",
        "/vllm.grpc.engine.VllmEngine/Embed",
        "/vllm.grpc.engine.VllmEngine/Generate",
        "/vllm.grpc.engine.VllmEngine/GetTokenizer",
        "/inference.GRPCInferenceService/ModelInfer",
    }
)
"""Methods that count against --max-concurrent-requests."""
_STREAMS = frozenset(
    {
        "/pagewire.v1.GenerationService/GenerateMultiplexed",
        "/pagewire.v1.AdminService/WatchLoad",
        "/grpc.health.v1.Health/Watch",
        "/inference.GRPCInferenceService/ModelStreamInfer",
    }
)
"""Methods that may stay open without doing anything. Requests of a multiplexed stream count one by one."""
_UNLIMITED = frozenset({"/grpc.health.v1.Health/Check"})
"""Methods that must work however many calls there are: load balancers rely on them."""


def _answering_unread(handler: Handler) -> Handler:
    """Returns a handler that answers as if the request were empty, and does not receive it."""

    async def call(_: object, context: Context) -> Any:
        return await getattr(handler, kind_of(handler))(handler.request_deserializer(b""), context)

    streams = kind_of(handler).endswith("_stream")
    make = grpc.stream_stream_rpc_method_handler if streams else grpc.stream_unary_rpc_method_handler
    return make(call, response_serializer=handler.response_serializer)


class LimitsInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits; belongs behind authentication."""

    def __init__(
        self,
        limits: ConcurrencyLimits,
        receiving_slots: ReceivingSlots,
        counters: Counters,
        receive_timeout: float,
    ) -> None:
        """receive_timeout: seconds that a request message may take to arrive."""
        self._limits = limits
        self._counters = counters
        self._receive_timeout = receive_timeout
        self._receiving_slots = receiving_slots

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
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
