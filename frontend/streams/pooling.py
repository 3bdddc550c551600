"""Calls that stand for many requests: embeddings of several inputs, and scores of continuations of a prompt.

An input is a request that pools. A continuation is a request whose prompt ends with it and which asks for
log-probabilities from its first token on; the prefix cache computes the prompt once, since requests that
arrive together share the blocks that the first one computes. As many run at once as the tenant's quotas
(streams/request_group.py) and the engine's rows make sense.
"""

import asyncio
from array import array
from dataclasses import dataclass

from frontend.call.call import Call
from frontend.errors import Aborted, ContextLengthExceeded, InvalidRequest, Unsupported
from frontend.model.info import limits_of
from frontend.model.pooling_config import PoolingDefaults
from frontend.streams.generator import Generator
from frontend.streams.request_group import RequestGroups
from frontend.streams.request_spec import ONE_MESSAGE, CallMode
from frontend.streams.stream import Stream
from frontend.validation.requests import check_continuations, check_embed
from frontend.validation.rules import Limits
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2, pooling_pb2

_AHEAD = 2
"""Requests of one call in flight, per row of an engine: its queue never runs dry, nor fills up."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """The embeddings of one call."""

    columns: list[bytes]
    """float32 columns, in the order of the inputs."""
    prompt_tokens: int
    cached_prompt_tokens: int


class Embedder:
    """Embeds by requests to the engine."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._groups = generator, RequestGroups(generator)

    async def embed(self, request: pooling_pb2.EmbedRequest, call: Call) -> Vectors:
        """Embeds all inputs. Raises ServiceError."""
        generator = self._generator
        generator.model.check_name(request.model)
        welcome = generator.engine.require_known()
        limits, size = limits_of(welcome, generator.config), welcome.model.embedding_size
        defaults = self._require_pooling(size)
        check_embed(request, limits, size)
        normalize = request.normalize if request.HasField("normalize") else defaults.normalize
        pooling = engine_pb2.Pooling(type=defaults.type, dimensions=request.dimensions, normalize=normalize)
        mode, output = CallMode(one_message=True, pooling=pooling), generation_pb2.OutputOptions(text=False)
        slots = asyncio.Semaphore(_AHEAD * welcome.max_num_seqs * max(limits.num_ranks, 1))
        with self._groups.open(request, call, len(request.inputs)) as group:
            with generator.limits.reading(request.ByteSize(), call.caller):
                prompts = await self._read(request, limits, call.caller.tenant)
            found = await self._groups.run(
                group, lambda index: group.request(index, prompts[index], output), mode, _read_vector, slots
            )
        cached = sum(cached for _, cached in found)
        return Vectors([column for column, _ in found], sum(map(len, prompts)), cached)

    def _require_pooling(self, size: int) -> PoolingDefaults:
        """Returns how the model pools. Raises Unsupported."""
        pooling = self._generator.model.pooling
        if pooling is None:
            problem = "makes no embeddings: its checkpoint does not say how, nor does --pooling-type"
            raise Unsupported({"model": problem})
        if not size:
            raise Unsupported({"model": "makes no embeddings: its engine cannot pool"})
        return pooling

    async def _read(
        self, request: pooling_pb2.EmbedRequest, limits: Limits, tenant: str | None
    ) -> "list[array[int]]":
        """Returns the inputs as token ids. Raises InvalidRequest."""
        prompts = []
        for place, prompt in enumerate(request.inputs):
            reading = self._generator.prompts.read_for_generation(
                prompt, f"inputs[{place}]", limits, tenant, prompt_only=True
            )
            prompts.append((await reading).token_ids)
        return prompts


def _read_vector(stream: Stream, message: generation_pb2.GenerateResponse | None) -> tuple[bytes, int]:
    """Returns the vector of one input, and the tokens of it that were cached."""
    if message is None or stream.vector is None:
        raise Aborted
    return stream.vector, message.prompt.cached_tokens


@dataclass(frozen=True, slots=True)
class _ContinuationScore:
    """The result for one continuation."""

    logprobs: list[float]  # by token
    cached_tokens: int


class ContinuationScorer:
    """Scores continuations by generation requests."""

    def __init__(self, generator: Generator) -> None:
        self._generator, self._groups = generator, RequestGroups(generator)

    async def score(
        self, request: pooling_pb2.ScoreContinuationsRequest, call: Call
    ) -> pooling_pb2.ScoreContinuationsResponse:
        """Scores all continuations. Raises ServiceError."""
        generator = self._generator
        generator.model.check_name(request.model)
        limits = limits_of(generator.engine.require_known(), generator.config)
        check_continuations(request, limits, generator.config.max_continuations)
        texts, tenant = list(request.continuations), call.caller.tenant
        with self._groups.open(request, call, len(texts)) as group:
            with generator.limits.reading(request.ByteSize(), call.caller):
                prompts = generator.prompts
                read = await prompts.read_for_generation(request.prompt, "prompt", limits, tenant)
                prompt = list(read.token_ids)
                continuations = await prompts.read_continuations(texts, tenant)
            for place, tokens in enumerate(continuations):
                _check_length(f"continuations[{place}]", len(prompt), len(tokens), limits.max_model_len)
            output = generation_pb2.OutputOptions(
                text=False,
                prompt_logprobs=generation_pb2.LogprobOptions(),
                prompt_logprobs_start=len(prompt),
            )
            scored = await self._groups.run(
                group,
                lambda index: group.request(index, prompt + continuations[index], output),
                ONE_MESSAGE,
                _read_score,
            )
        return _response(request, len(prompt), scored)


def _read_score(stream: Stream, message: generation_pb2.GenerateResponse | None) -> _ContinuationScore:
    """Raises Aborted when log-probabilities of the continuation are missing."""
    assert message is not None  # a stream ends with a message or raises
    logprobs = list(message.prompt.logprobs.logprobs)
    if stream.missing_prompt_logprobs is not None:
        raise Aborted
    return _ContinuationScore(logprobs, message.prompt.cached_tokens)


def _check_length(path: str, prompt_len: int, length: int, max_model_len: int) -> None:
    if not length:
        raise InvalidRequest({path: "has no tokens"})
    if prompt_len + length > max_model_len:
        raise ContextLengthExceeded(path, prompt_len + length, max_model_len)


def _response(
    request: pooling_pb2.ScoreContinuationsRequest, prompt_len: int, scored: list[_ContinuationScore]
) -> pooling_pb2.ScoreContinuationsResponse:
    response = pooling_pb2.ScoreContinuationsResponse()
    for one in scored:
        response.scores.add(
            logprob=sum(one.logprobs),
            tokens=len(one.logprobs),
            token_logprobs=one.logprobs if request.token_logprobs else (),
        )
    response.usage.prompt_tokens = prompt_len + sum(len(one.logprobs) for one in scored)
    # The first request found what was cached before; the others may have found what it computed.
    response.usage.cached_prompt_tokens = min(prompt_len, *(one.cached_tokens for one in scored))
    return response
