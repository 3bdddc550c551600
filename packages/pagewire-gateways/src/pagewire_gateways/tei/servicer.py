"""The services of text-embeddings-inference, over the parts of all others."""

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial, wraps
from typing import Any, TypeVar

import grpc

from frontend.call.call import Call
from frontend.field_names import renaming
from frontend.parts import FrontendParts
from frontend.prompts.prompt_encoding import TokenizedPrompt
from frontend.rpc.call_context import Context, current_call
from frontend.rpc.error_mapping import guarded
from frontend.servicers.tokenizer import byte_offsets
from frontend.streams.classifier import Classified
from frontend.streams.pooling import Vectors
from frontend.streams.request_registry import Aborts
from frontend.streams.scorer import Scored
from frontend.tokenization import detokenized, tokenized
from frontend.validation.requests import MAX_PROMPTS
from frontend.vectors import nonzero, split
from pagewire import __version__
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import pooling_pb2, prompt_pb2
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from pagewire_gateways.tei.ordered import OrderedStream
from pagewire_gateways.tei.ranking import RankedText, gathered
from pagewire_gateways.tei.requests import (
    NAMES,
    PAIR_NAMES,
    STREAM_NAMES,
    read_decode,
    read_embed,
    read_embed_all,
    read_embed_sparse,
    read_encode,
    read_predict,
    read_rerank,
    rerank_names,
)
from pagewire_gateways.tei.responses import metadata_of

M = TypeVar("M", tei_pb2.EmbedRequest, tei_pb2.EmbedAllRequest, tei_pb2.EmbedSparseRequest)
Rpc = Callable[[Any, Any, Context], Awaitable[Any]]
SERVICES = "Info", "Embed", "Predict", "Rerank", "Tokenize"


def _rpcs(answer: Callable[..., Awaitable[Any]], *, while_draining: bool = False) -> tuple[Rpc, Rpc]:
    """Returns the RPC of one message, and that of a stream of messages.

    answer: method of TeiServicer: (message, call) -> response. while_draining: the first one needs no engine,
    and answers until the server has stopped.
    """

    @guarded
    @wraps(answer)
    async def unary(servicer: "TeiServicer", request: Any, context: Context) -> Any:
        if not while_draining:
            servicer.parts.state.require_open()
        return await answer(servicer, request, current_call(context))

    @guarded
    @wraps(answer)
    async def stream(servicer: "TeiServicer", requests: AsyncIterator[Any], context: Context) -> None:
        await OrderedStream(servicer.parts, partial(answer, servicer)).run(requests, context)

    return unary, stream


class TeiServicer(
    tei_pb2_grpc.InfoServicer,
    tei_pb2_grpc.EmbedServicer,
    tei_pb2_grpc.PredictServicer,
    tei_pb2_grpc.RerankServicer,
    tei_pb2_grpc.TokenizeServicer,
):
    """Embeds, classifies, reranks and tokenizes."""

    descriptors = tuple(tei_pb2.DESCRIPTOR.services_by_name[name] for name in SERVICES)
    interceptors = ()

    def __init__(self, parts: FrontendParts, aborts: Aborts) -> None:
        """aborts: as all services get it; requests of these have no ids."""
        self.parts = parts

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the services."""
        for name in SERVICES:
            getattr(tei_pb2_grpc, f"add_{name}Servicer_to_server")(self, server)

    @guarded
    async def Info(self, request: tei_pb2.InfoRequest, context: Context) -> tei_pb2.InfoResponse:
        parts, facts = self.parts, self.parts.engine.facts or self.parts.engine.require()
        return tei_pb2.InfoResponse(
            version=__version__,
            model_id=parts.model.name,
            model_dtype=facts.model.dtype,
            model_type=_model_type(parts),
            max_concurrent_requests=parts.config.max_concurrent_requests,
            max_input_length=parts.model.texts.longest(facts.model.max_model_len),
            max_batch_tokens=facts.max_num_batched_tokens,
            max_batch_requests=facts.max_num_seqs,
            max_client_batch_size=MAX_PROMPTS,
            tokenization_workers=parts.config.tokenizer_threads,
        )

    async def _embed(self, message: tei_pb2.EmbedRequest, call: Call) -> tei_pb2.EmbedResponse:
        vectors, metadata = await self._vectors(message, read_embed, call)
        return tei_pb2.EmbedResponse(embeddings=unpack_f32_array(vectors.columns[0]), metadata=metadata)

    async def _embed_all(self, message: tei_pb2.EmbedAllRequest, call: Call) -> tei_pb2.EmbedAllResponse:
        vectors, metadata = await self._vectors(message, read_embed_all, call)
        (column,), (token_ids,) = vectors.columns, vectors.token_ids

        def response() -> tei_pb2.EmbedAllResponse:
            made = tei_pb2.EmbedAllResponse(metadata=metadata)
            for vector in split(column, len(token_ids)):
                made.token_embeddings.add(embeddings=unpack_f32_array(vector))
            return made

        return await self.parts.prompts.run(response, call.caller.tenant, len(column))

    async def _embed_sparse(
        self, message: tei_pb2.EmbedSparseRequest, call: Call
    ) -> tei_pb2.EmbedSparseResponse:
        vectors, metadata = await self._vectors(message, read_embed_sparse, call)
        (column,) = vectors.columns

        def response() -> tei_pb2.EmbedSparseResponse:
            made = tei_pb2.EmbedSparseResponse(metadata=metadata)
            for index, value in zip(*nonzero(column), strict=True):
                made.sparse_embeddings.add(index=index, value=value)
            return made

        return await self.parts.prompts.run(response, call.caller.tenant, len(column))

    async def _vectors(
        self, message: M, read: Callable[[M, int], pooling_pb2.EmbedRequest], call: Call
    ) -> tuple[Vectors, tei_pb2.Metadata]:
        """Returns what one text becomes. read: returns the request, of at most so many tokens. Raises
        ServiceError."""
        began, parts = time.monotonic_ns(), self.parts
        longest = parts.model.texts.longest(parts.engine.require_known().model.max_model_len)
        request = await parts.large_messages.run(
            partial(read, message, longest), message.ByteSize(), call.caller
        )
        with renaming(NAMES):
            vectors = await parts.embedder.embed(request, call, cuts=False)
        return vectors, metadata_of(began, len(message.inputs), vectors.usage)

    async def _predict(
        self, message: tei_pb2.PredictRequest | tei_pb2.PredictPairRequest, call: Call
    ) -> tei_pb2.PredictResponse:
        began, parts = time.monotonic_ns(), self.parts
        read = partial(read_predict, message, parts.engine.require_known().model.max_model_len)
        request, first = await parts.large_messages.run(read, message.ByteSize(), call.caller)
        size = len(first or "") + len(request.inputs[0].text)
        found: Classified | Scored
        if first is not None and parts.model.scoring is not None:  # the number of a cross-encoder is a score
            asked = pooling_pb2.ScoreRequest(query=prompt_pb2.Prompt(text=first), documents=request.inputs)
            found = await self._score(asked, call, PAIR_NAMES)
            labels = parts.model.classes.labels if parts.model.classes else ("LABEL_0",)
            values = [each.raw if message.raw_scores else each.score for each in found.documents]
        else:
            with renaming(NAMES):
                found = await parts.classifier.classify(request, call, first)
            labels, values = found.labels, (found.raw if message.raw_scores else found.values)[0]
        response = tei_pb2.PredictResponse(metadata=metadata_of(began, size, found.usage))
        for score, label in sorted(zip(values, labels, strict=True), key=lambda pair: -pair[0]):
            response.predictions.add(score=score, label=label)
        return response

    @guarded
    async def Rerank(self, request: tei_pb2.RerankRequest, context: Context) -> tei_pb2.RerankResponse:
        began, parts, call = time.monotonic_ns(), self.parts, current_call(context)
        parts.state.require_open()
        read = partial(read_rerank, request, parts.engine.require_known().model.max_model_len)
        asked = await parts.large_messages.run(read, request.ByteSize(), call.caller)
        found = await self._score(asked, call, NAMES | rerank_names(len(request.texts)))
        size = len(request.query) + sum(map(len, request.texts))
        response = tei_pb2.RerankResponse(metadata=metadata_of(began, size, found.usage))
        for each in found.documents:
            text = request.texts[each.index] if request.return_text else None
            score = each.raw if request.raw_scores else each.score
            response.ranks.add(index=each.index, text=text, score=score)
        return response

    @guarded
    async def RerankStream(
        self, requests: AsyncIterator[tei_pb2.RerankStreamRequest], context: Context
    ) -> tei_pb2.RerankResponse:
        return await gathered(OrderedStream(self.parts, self._rank), requests, context)

    async def _rank(self, message: tei_pb2.RerankStreamRequest, call: Call) -> RankedText:
        parts = self.parts
        read = partial(read_rerank, message, parts.engine.require_known().model.max_model_len)
        asked = await parts.large_messages.run(read, message.ByteSize(), call.caller)
        return RankedText(message, await self._score(asked, call, STREAM_NAMES))

    async def _score(self, request: pooling_pb2.ScoreRequest, call: Call, names: Mapping[str, str]) -> Scored:
        """Returns the scores. names: of our fields. Raises ServiceError."""
        with renaming(names):
            return await self.parts.scorer.score(request, call)

    async def _tokenize(self, message: tei_pb2.EncodeRequest, call: Call) -> tei_pb2.EncodeResponse:
        parts, caller, size = self.parts, call.caller, message.ByteSize()
        read_message = partial(read_encode, message, parts.model.texts.prompt)
        request = await parts.large_messages.run(read_message, size, caller)
        with renaming(NAMES):
            async with tokenized(parts, request, caller) as (read,):
                return await parts.prompts.run(partial(self._tokens, read), caller.tenant, size)

    def _tokens(self, read: TokenizedPrompt) -> tei_pb2.EncodeResponse:
        """Builds the response in a thread, as it takes time per token."""
        response, data = tei_pb2.EncodeResponse(), read.text.encode()
        special_tokens = self.parts.model.tokenizer.special_tokens
        for token, (start, stop) in zip(read.token_ids, byte_offsets(read), strict=True):
            if token in special_tokens and start == stop:
                response.tokens.add(id=token, text=special_tokens[token].content, special=True)
            else:
                text = data[start:stop].decode(errors="replace")
                response.tokens.add(id=token, text=text, start=start, stop=stop)
        return response

    async def _decode(self, message: tei_pb2.DecodeRequest, call: Call) -> tei_pb2.DecodeResponse:
        parts, read = self.parts, partial(read_decode, message)
        request = await parts.large_messages.run(read, message.ByteSize(), call.caller)
        with renaming(NAMES):
            (text,) = await detokenized(parts, request, call.caller)
        return tei_pb2.DecodeResponse(text=text)

    Embed, EmbedStream = _rpcs(_embed)
    EmbedAll, EmbedAllStream = _rpcs(_embed_all)
    EmbedSparse, EmbedSparseStream = _rpcs(_embed_sparse)
    Predict, PredictStream = _rpcs(_predict)
    PredictPair, PredictPairStream = Predict, PredictStream
    Tokenize, TokenizeStream = _rpcs(_tokenize, while_draining=True)
    Decode, DecodeStream = _rpcs(_decode, while_draining=True)


def _model_type(parts: FrontendParts) -> tei_pb2.ModelType:
    if parts.model.scoring is not None:
        return tei_pb2.MODEL_TYPE_RERANKER
    return tei_pb2.MODEL_TYPE_CLASSIFIER if parts.model.classes else tei_pb2.MODEL_TYPE_EMBEDDING
