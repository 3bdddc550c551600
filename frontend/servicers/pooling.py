"""PoolingService."""

from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_call, current_caller
from frontend.rpc.error_mapping import guarded
from frontend.streams.pooling import PoolingUsage
from frontend.vectors import nonzero, write_vectors
from pagewire.v1 import generation_pb2, pooling_pb2, pooling_pb2_grpc
from pagewire.v1.pooling_pb2 import EMBEDDING_KIND_SPARSE, EMBEDDING_KIND_TOKENS


class PoolingServicer(pooling_pb2_grpc.PoolingServiceServicer):
    """Returns vectors and scores instead of text."""

    def __init__(self, parts: FrontendParts) -> None:
        self._parts = parts

    @guarded
    async def Embed(self, request: pooling_pb2.EmbedRequest, context: Context) -> pooling_pb2.EmbedResponse:
        self._parts.state.require_open()
        vectors = await self._parts.embedder.embed(request, current_call(context))
        response = pooling_pb2.EmbedResponse(usage=_usage(vectors.usage))

        def write() -> None:
            found = zip(vectors.columns, vectors.token_ids, vectors.truncated, strict=True)
            for column, token_ids, truncated in found:
                embedding = response.embeddings.add(truncated_tokens=truncated)
                if request.kind == EMBEDDING_KIND_SPARSE:
                    token_ids, weights = nonzero(column)
                    embedding.token_ids.extend(token_ids)
                    embedding.values.extend(weights)
                else:
                    of_tokens = request.kind == EMBEDDING_KIND_TOKENS
                    write_vectors(column, request.raw_dtype, embedding, token_ids if of_tokens else ())

        size = sum(map(len, vectors.columns))
        await self._parts.prompts.run(write, current_caller().tenant, size)
        return response

    @guarded
    async def Score(self, request: pooling_pb2.ScoreRequest, context: Context) -> pooling_pb2.ScoreResponse:
        self._parts.state.require_open()
        found = await self._parts.scorer.score(request, current_call(context))
        response = pooling_pb2.ScoreResponse(usage=_usage(found.usage))
        for document in found.documents:
            response.scores.add(index=document.index, score=document.score)
        return response

    @guarded
    async def Classify(
        self, request: pooling_pb2.ClassifyRequest, context: Context
    ) -> pooling_pb2.ClassifyResponse:
        self._parts.state.require_open()
        found = await self._parts.classifier.classify(request, current_call(context))
        response = pooling_pb2.ClassifyResponse(labels=found.labels, usage=_usage(found.usage))
        for values in found.values:
            response.results.add(probabilities=values)
        return response

    @guarded
    async def ScoreContinuations(
        self, request: pooling_pb2.ScoreContinuationsRequest, context: Context
    ) -> pooling_pb2.ScoreContinuationsResponse:
        self._parts.state.require_open()
        return await self._parts.continuation_scorer.score(request, current_call(context))


def _usage(usage: PoolingUsage) -> generation_pb2.Usage:
    return generation_pb2.Usage(
        prompt_tokens=usage.prompt_tokens, cached_prompt_tokens=usage.cached_prompt_tokens
    )
