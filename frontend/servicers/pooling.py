"""PoolingService."""

from frontend.call.serving_state import ServingState
from frontend.errors import Unimplemented
from frontend.pooling.embedder import Embedder
from frontend.pooling.vectors import write_vector
from frontend.prompts.prompt_reader import PromptReader
from frontend.rpc.call_context import Context, current_call
from frontend.rpc.error_mapping import guarded
from frontend.streams.continuation_scorer import ContinuationScorer
from pagewire.v1 import pooling_pb2, pooling_pb2_grpc


class PoolingServicer(pooling_pb2_grpc.PoolingServiceServicer):
    """Returns vectors and scores instead of text."""

    def __init__(
        self, scorer: ContinuationScorer, embedder: Embedder, prompts: PromptReader, state: ServingState
    ) -> None:
        self._scorer, self._embedder, self._prompts = scorer, embedder, prompts
        self._state = state

    @guarded
    async def Embed(self, request: pooling_pb2.EmbedRequest, context: Context) -> pooling_pb2.EmbedResponse:
        self._state.require_open()
        vectors = await self._embedder.embed(request, current_call(context))
        response = pooling_pb2.EmbedResponse()
        response.usage.prompt_tokens = vectors.prompt_tokens
        response.usage.cached_prompt_tokens = vectors.cached_prompt_tokens

        def write() -> None:
            for column in vectors.columns:
                write_vector(column, request.raw_dtype, response.embeddings.add())

        await self._prompts.run(write)
        return response

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
