"""Scores continuations of a prompt: each is a request whose prompt ends with the continuation and which asks
for log-probabilities from the continuation's first token on.

They are sent in turn (request_group.py); the prefix cache computes the prompt once, since requests
that arrive together share the blocks that the first one computes.
"""

from dataclasses import dataclass

from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.errors import Aborted, ContextLengthExceeded, InvalidRequest
from frontend.model.info import ModelInfo, limits_of
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from frontend.streams.request_group import RequestGroup, RequestGroups
from frontend.streams.request_spec import ONE_MESSAGE
from frontend.streams.stream import Stream
from frontend.validation.requests import check_continuations
from pagewire.config import FrontendConfig
from pagewire.v1 import generation_pb2, pooling_pb2


@dataclass(frozen=True, slots=True)
class _ContinuationScore:
    """The result for one continuation."""

    logprobs: list[float]  # by token
    cached_tokens: int


class ContinuationScorer:
    """Scores continuations by generation requests."""

    def __init__(
        self,
        config: FrontendConfig,
        model: ModelInfo,
        prompts: PromptReader,
        engine: EngineClient,
        generator: Generator,
        limits: ConcurrencyLimits,
    ) -> None:
        self._config, self._model, self._prompts = config, model, prompts
        self._engine, self._limits = engine, limits
        self._groups = RequestGroups(generator, limits)

    async def score(
        self, request: pooling_pb2.ScoreContinuationsRequest, call: Call
    ) -> pooling_pb2.ScoreContinuationsResponse:
        """Scores all continuations. Raises ServiceError."""
        self._model.check_name(request.model)
        limits = limits_of(self._engine.require_known(), self._config)
        check_continuations(request, limits, self._config.max_continuations)
        texts, tenant = list(request.continuations), call.caller.tenant
        with self._groups.open(request, call, len(texts)) as group:
            with self._limits.reading(request.ByteSize(), call.caller):
                read = await self._prompts.read_for_generation(
                    request.prompt,
                    "prompt",
                    vocab_size=limits.vocab_size,
                    max_model_len=limits.max_model_len,
                    tenant=tenant,
                )
                prompt = list(read.token_ids)
                continuations = await self._prompts.read_continuations(texts, tenant)
            for place, tokens in enumerate(continuations):
                _check_length(f"continuations[{place}]", len(prompt), len(tokens), limits.max_model_len)
            scored = await self._score_all(group, prompt, continuations)
        return _response(request, len(prompt), scored)

    async def _score_all(
        self, group: RequestGroup, prompt: list[int], continuations: list[list[int]]
    ) -> list[_ContinuationScore]:
        output = generation_pb2.OutputOptions(
            text=False,
            prompt_logprobs=generation_pb2.LogprobOptions(),
            prompt_logprobs_start=len(prompt),
        )

        def make(index: int) -> generation_pb2.GenerateRequest:
            return group.request(index, prompt + continuations[index], output)

        return await self._groups.run(group, make, ONE_MESSAGE, _read_score)


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
