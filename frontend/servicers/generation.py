"""GenerationService."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

from frontend.auth.caller import caller_now, current_caller, scope
from frontend.concurrency_limits import Capacity
from frontend.engine.client import EngineClient
from frontend.rpc.error_mapping import Context, guarded
from frontend.rpc.write_timeout import Deliveries
from frontend.state import ServingState
from frontend.streams.generator import Generator
from frontend.streams.multiplexer import Multiplexer
from frontend.validation.requests import check_abort
from pagewire.config import FrontendConfig
from pagewire.v1 import generation_pb2, generation_pb2_grpc

Commands = AsyncIterator[generation_pb2.GenerateMultiplexedRequest]


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Text generation."""

    def __init__(
        self,
        config: FrontendConfig,
        generator: Generator,
        engine: EngineClient,
        state: ServingState,
        capacity: Capacity,
        deliveries: Deliveries,
    ) -> None:
        self._config = config
        self._generator = generator
        self._state = state
        self._engine = engine
        self._capacity = capacity
        self._deliveries = deliveries

    @guarded
    async def Generate(self, request: generation_pb2.GenerateRequest, context: Context) -> None:
        self._state.require_open()
        self._capacity.enter(context.add_done_callback)
        async with self._generator.open(request, current_caller(), context.time_remaining()) as stream:
            with self._deliveries.to(context) as delivery:
                while (message := await stream.take()) is not None:
                    await delivery.write(message)

    @guarded
    async def GenerateUnary(
        self, request: generation_pb2.GenerateRequest, context: Context
    ) -> generation_pb2.GenerateResponse:
        self._state.require_open()
        self._capacity.enter(context.add_done_callback)
        time_left = context.time_remaining()
        async with self._generator.open(request, current_caller(), time_left, whole=True) as stream:
            message = await stream.take()
            assert message is not None  # a stream ends with a message or raises
            return message

    @guarded
    async def GenerateMultiplexed(self, requests: Commands, context: Context) -> None:
        self._state.require_open()
        multiplexer = Multiplexer(
            self._generator, self._state, self._capacity, self._config.max_multiplexed_requests
        )
        async with aclosing(multiplexer):
            reading = asyncio.create_task(_read(requests, multiplexer, context), name="commands")
            try:
                with self._deliveries.to(context) as delivery:
                    while (message := await multiplexer.take()) is not None:
                        await delivery.write(message)
            finally:
                reading.cancel()

    @guarded
    async def Abort(
        self, request: generation_pb2.AbortRequest, context: Context
    ) -> generation_pb2.AbortResponse:
        check_abort(request)
        tenant = current_caller().may_abort_for(request.tenant)
        members = {
            name: self._generator.in_flight.members(scope(tenant, name)) for name in request.request_ids
        }
        wanted = [member for parts in members.values() for member in parts]
        unsent = self._generator.in_flight.abort_unsent(wanted)
        others = [member for member in wanted if member not in unsent]
        known = await self._engine.abort_by_ids(others) if others else []
        aborted = unsent.union(known)
        return generation_pb2.AbortResponse(
            aborted_request_ids=[
                name for name in request.request_ids if not aborted.isdisjoint(members[name])
            ]
        )


async def _read(commands: Commands, multiplexer: Multiplexer, context: Context) -> None:
    """Until the client has no more of them, or one that cannot be read."""
    try:
        async for command in commands:
            multiplexer.obey(command, caller_now, context.time_remaining())
            await multiplexer.wait_for_room()
    except Exception as error:
        multiplexer.break_off(error)
    else:
        multiplexer.half_close()
