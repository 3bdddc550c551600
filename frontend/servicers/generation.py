"""GenerationService."""

from frontend.auth.caller import current_caller, scope
from frontend.capacity import Capacity
from frontend.deliveries import Deliveries
from frontend.engine_client import EngineClient
from frontend.errors import NotBuilt
from frontend.generation import Generator
from frontend.servicers.guard import Context, guarded
from frontend.state import ServingState
from frontend.validation import check_abort
from pagewire.v1 import generation_pb2, generation_pb2_grpc


class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Text generation."""

    def __init__(
        self,
        generator: Generator,
        engine: EngineClient,
        state: ServingState,
        capacity: Capacity,
        deliveries: Deliveries,
    ) -> None:
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
    async def GenerateMultiplexed(self, request: object, context: Context) -> None:
        raise NotBuilt("GenerateMultiplexed")

    @guarded
    async def Abort(
        self, request: generation_pb2.AbortRequest, context: Context
    ) -> generation_pb2.AbortResponse:
        check_abort(request)
        tenant = current_caller().may_abort_for(request.tenant)
        members = {name: self._generator.members(scope(tenant, name)) for name in request.request_ids}
        wanted = [member for parts in members.values() for member in parts]
        unsent = self._generator.abort_unsent(wanted)
        others = [member for member in wanted if member not in unsent]
        known = await self._engine.abort_by_ids(others) if others else []
        aborted = unsent.union(known)
        return generation_pb2.AbortResponse(
            aborted_request_ids=[
                name for name in request.request_ids if not aborted.isdisjoint(members[name])
            ]
        )
