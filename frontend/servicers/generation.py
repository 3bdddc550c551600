"""GenerationService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from functools import partial

from frontend.call.limits import ConcurrencyLimits
from frontend.call.serving_state import ServingState
from frontend.call.write_timeout import WriteTimeouts
from frontend.rpc.call_context import Context, current_call, current_caller, reauthenticated_call, sender
from frontend.rpc.error_mapping import guarded
from frontend.streams.generator import Generator
from frontend.streams.multiplexer import Multiplexer
from frontend.streams.request_registry import Aborts
from frontend.streams.request_spec import CallMode
from frontend.validation.requests import check_abort
from pagewire.config import FrontendConfig
from pagewire.v1 import generation_pb2, generation_pb2_grpc

Commands = AsyncIterator[generation_pb2.GenerateMultiplexedRequest]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Generates text."""

    def __init__(
        self,
        config: FrontendConfig,
        generator: Generator,
        aborts: Aborts,
        state: ServingState,
        limits: ConcurrencyLimits,
        write_timeouts: WriteTimeouts,
    ) -> None:
        self._config = config
        self._generator = generator
        self._state = state
        self._aborts = aborts
        self._limits = limits
        self._write_timeouts = write_timeouts

    @guarded
    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:
        self._state.require_open()
        async with self._generator.open(request, current_call(context), CallMode(find=True)) as stream:
            with self._write_timeouts.writer(sender(context)) as writer:
                while (message := await stream.take()) is not None:
                    await writer.write(message)

    @guarded
    async def GenerateUnary(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        self._state.require_open()
        async with self._generator.open(
            request, current_call(context), CallMode(one_message=True, find=True)
        ) as stream:
            message = await stream.take()
            assert message is not None  # a stream ends with a message or raises
            return message

    @guarded
    async def GenerateMultiplexed(self, requests: Commands, context: Context) -> None:
        self._state.require_open()
        multiplexer = Multiplexer(
            self._generator, self._state, self._limits, self._config.max_multiplexed_requests
        )
        async with aclosing(multiplexer):
            reading = asyncio.create_task(_read(requests, multiplexer, context), name="commands")
            try:
                with self._write_timeouts.writer(sender(context)) as writer:
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
