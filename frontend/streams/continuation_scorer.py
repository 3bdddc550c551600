"""Scores continuations of a prompt: each is a request whose prompt ends with the continuation and which asks
for log-probabilities from the continuation's first token on.

They are sent in turn (scoring_turns.py); the prefix cache computes the prompt once, since requests
that arrive together share the blocks that the first one computes. The one token that each of them samples is
dropped.
"""

import asyncio
import secrets
from dataclasses import dataclass, replace

from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.errors import Aborted, ContextLengthExceeded, InvalidRequest
from frontend.model.info import ModelInfo, limits_of
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from frontend.streams.scoring_turns import ScoringTurns
from frontend.telemetry.log_fields import put_log_fields
from frontend.validation.requests import check_continuations
from frontend.validation.terms import check_terms
from pagewire.config import FrontendConfig
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2


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
        self._engine, self._generator, self._limits = engine, generator, limits
        self._turns = ScoringTurns(limits.serves_others)

    async def score(
        self, request: pooling_pb2.ScoreContinuationsRequest, call: Call
    ) -> pooling_pb2.ScoreContinuationsResponse:
        """Scores all continuations. Raises ServiceError."""
        self._model.check_name(request.model)
        limits = limits_of(self._engine.require_known(), self._config)
        check_continuations(request, limits, self._config.max_continuations)
        caller = call.caller
        tenant = caller.act_as(request.tenant)
        check_terms(caller, request.priority)
        ends = None if call.time_left is None else asyncio.get_running_loop().time() + call.time_left
        request_id, texts = request.request_id or secrets.token_hex(16), list(request.continuations)
        put_log_fields(request_id, tenant, call.trace)
        with self._generator.registry.group(request_id, caller, len(texts)) as members:
            with self._limits.reading(request.ByteSize(), caller):
                read = await self._prompts.read_for_generation(
                    request.prompt,
                    "prompt",
                    vocab_size=limits.vocab_size,
                    max_model_len=limits.max_model_len,
                    tenant=caller.tenant,
                )
                prompt = list(read.token_ids)
                continuations = await self._prompts.read_continuations(texts, caller.tenant)
            for place, tokens in enumerate(continuations):
                _check_length(f"continuations[{place}]", len(prompt), len(tokens), limits.max_model_len)
            scored = await self._score_all(request, call, prompt, continuations, members, ends)
        return _response(request, len(prompt), scored)

    async def _score_all(
        self,
        whole: pooling_pb2.ScoreContinuationsRequest,
        call: Call,
        prompt: list[int],
        continuations: list[list[int]],
        request_ids: tuple[str, ...],
        ends: float | None,
    ) -> list[_ContinuationScore]:
        """The first failure ends all requests."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._score_one(whole, prompt, tokens, request_id, call, ends))
                    for tokens, request_id in zip(continuations, request_ids, strict=True)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return [task.result() for task in tasks]

    async def _score_one(
        self,
        whole: pooling_pb2.ScoreContinuationsRequest,
        prompt: list[int],
        tokens: list[int],
        request_id: str,
        call: Call,
        ends: float | None,
    ) -> _ContinuationScore:
        async with self._turns.turn(call.caller):
            request = _request(whole, prompt, tokens, request_id)  # each has a copy of the prompt
            left = None if ends is None else max(ends - asyncio.get_running_loop().time(), 0.0)
            async with self._generator.open(request, replace(call, time_left=left), whole=True) as stream:
                message = await stream.take()
                assert message is not None  # a stream ends with a message or raises
                logprobs = list(message.prompt.logprobs.logprobs)
                wanted = len(request.prompt.token_ids.ids) - request.output.prompt_logprobs_start
                if len(logprobs) < wanted:
                    raise Aborted
                return _ContinuationScore(logprobs, message.prompt.cached_tokens)


def _request(
    whole: pooling_pb2.ScoreContinuationsRequest, prompt: list[int], tokens: list[int], request_id: str
) -> generation_pb2.GenerateRequest:
    """Returns the request that scores one continuation."""
    return generation_pb2.GenerateRequest(
        request_id=request_id,
        prompt=prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=prompt + tokens)),
        sampling=generation_pb2.SamplingParams(temperature=0),
        stopping=generation_pb2.StoppingCriteria(max_tokens=1),
        output=generation_pb2.OutputOptions(
            text=False,
            prompt_logprobs=generation_pb2.LogprobOptions(),
            prompt_logprobs_start=len(prompt),
        ),
        priority=whole.priority,
        tenant=whole.tenant,
        cache=whole.cache,
    )


def _check_length(path: str, prompt_len: int, length: int, max_model_len: int) -> None:
    if not length:
        raise InvalidRequest({path: "has no tokens"})
    if prompt_len + length >= max_model_len:
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
