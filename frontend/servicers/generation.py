"""GenerationService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_call, current_caller, reauthenticated_call, sender
from frontend.rpc.error_mapping import guarded
from frontend.streams.multiplexer import Multiplexer
from frontend.streams.request_registry import Aborts
from frontend.streams.request_spec import CallMode
from frontend.validation.requests import check_abort
from pagewire.v1 import generation_pb2, generation_pb2_grpc

Commands = AsyncIterator[generation_pb2.GenerateMultiplexedRequest]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Generates text."""

    def __init__(self, parts: FrontendParts, aborts: Aborts) -> None:
        self._parts, self._aborts = parts, aborts

    @guarded
    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:
        parts = self._parts
        parts.state.require_open()
        async with parts.generator.open(request, current_call(context), CallMode(find=True)) as stream:
            with parts.write_timeouts.writer(sender(context)) as writer:
                while (message := await stream.take()) is not None:
                    await writer.write(message)

    @guarded
    async def GenerateUnary(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        self._parts.state.require_open()
        mode = CallMode(one_message=True, find=True)
        async with self._parts.generator.open(request, current_call(context), mode) as stream:
            message = await stream.take()
            assert message is not None  # a stream ends with a message or raises
            return message

    @guarded
    async def GenerateMultiplexed(self, requests: Commands, context: Context) -> None:
        parts = self._parts
        parts.state.require_open()
        most = parts.config.max_multiplexed_requests
        multiplexer = Multiplexer(parts.generator, parts.state, parts.limits, most)
        async with aclosing(multiplexer):
            reading = asyncio.create_task(_read(requests, multiplexer, context), name="commands")
            try:
                with parts.write_timeouts.writer(sender(context)) as writer:
                    while (message := await multiplexer.take()) is not None:
                        await writer.write(message)
            finally:
                reading.cancel()

    @guarded
    async def Abort(
        self, request: generation_pb2.AbortRequest, context: Context
    ) -> generation_pb2.AbortResponse:
        check_abort(request)
        tenant = current_caller().may_abort_for(request.tenant)
        aborted = await self._aborts.abort(tenant, request.request_ids)
        return generation_pb2.AbortResponse(aborted_request_ids=aborted)


async def _read(commands: Commands, multiplexer: Multiplexer, context: Context) -> None:
    """Hands commands to the multiplexer until the client has no more, or sends one that cannot be parsed."""
    try:
        async for command in commands:
            multiplexer.handle(command, partial(reauthenticated_call, context))
            await multiplexer.wait_for_room()
    except Exception as error:
        multiplexer.break_off(error)
    else:
        multiplexer.half_close()
