"""PoolingService."""

from frontend.errors import Unimplemented
from frontend.rpc.call_context import Context, current_call
from frontend.rpc.error_mapping import guarded
from frontend.state import ServingState
from frontend.streams.continuation_scorer import ContinuationScorer
from pagewire.v1 import pooling_pb2, pooling_pb2_grpc


class PoolingServicer(pooling_pb2_grpc.PoolingServiceServicer):
    """Returns scores instead of text."""

    def __init__(self, scorer: ContinuationScorer, state: ServingState) -> None:
        self._scorer = scorer
        self._state = state

    @guarded
    async def Embed(self, request: pooling_pb2.EmbedRequest, context: Context) -> None:
        raise Unimplemented("Embed")

    @guarded
    async def Score(self, request: pooling_pb2.ScoreRequest, context: Context) -> None:
        raise Unimplemented("Score")

    @guarded
    async def Classify(self, request: pooling_pb2.ClassifyRequest, context: Context) -> None:
        raise Unimplemented("Classify")

    @guarded
    async def ScoreContinuations(
        self, request: pooling_pb2.ScoreContinuationsRequest, context: Context
    ) -> pooling_pb2.ScoreContinuationsResponse:
        self._state.require_open()
        return await self._scorer.score(request, current_call(context))
