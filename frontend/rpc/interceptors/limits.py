"""Holds a slot of ConcurrencyLimits for every call that costs something.

The slot is taken before the request message is received and returned when the call's task ends, which
includes sending the status. So clients that upload slowly or do not read their answer hold slots, too.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import grpc

from frontend.concurrency_limits import ConcurrencyLimits
from frontend.errors import ServiceError
from frontend.rpc.error_mapping import refusing_handler
from frontend.rpc.handlers import Handler

_LIMITED = frozenset(
    {
        "/pagewire.v1.GenerationService/Generate",
        "/pagewire.v1.GenerationService/GenerateUnary",
        "/pagewire.v1.PoolingService/ScoreContinuations",
        "/pagewire.v1.TokenizerService/Tokenize",
        "/pagewire.v1.TokenizerService/Detokenize",
    }
)
"""Methods that count against --max-concurrent-requests. Requests of a multiplexed stream count one by one."""


class LimitsInterceptor(grpc.aio.ServerInterceptor):
    """Refuses calls beyond the limits; belongs behind authentication."""

    def __init__(self, limits: ConcurrencyLimits) -> None:
        self._limits = limits

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        if handler_call_details.method not in _LIMITED:
            return await continuation(handler_call_details)
        task, slot = asyncio.current_task(), ExitStack()
        assert task is not None
        try:
            slot.enter_context(self._limits.call())
        except ServiceError as error:
            return refusing_handler(error)
        task.add_done_callback(lambda _: slot.close())
        return await continuation(handler_call_details)
