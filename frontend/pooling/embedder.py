"""Embeds inputs: each is a request that pools, under the id of the whole.

They run as far at once as the tenant's quotas and the engine's rows make sense (streams/scoring_turns.py).
"""

import asyncio
import secrets
from dataclasses import dataclass, replace

from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.errors import Aborted, Unsupported
from frontend.model.info import ModelInfo, limits_of
from frontend.model.pooling_config import PoolingDefaults
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from frontend.streams.scoring_turns import ScoringTurns
from frontend.telemetry.log_fields import put_log_fields
from frontend.validation.pooling import check_embed
from frontend.validation.rules import Limits
from frontend.validation.terms import check_terms
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2, pooling_pb2, prompt_pb2

_AHEAD = 2
"""Requests of one call in flight, per row of an engine: its queue never runs dry, nor fills up."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """What the inputs of one call have become."""

    columns: list[bytes]
    """float32 columns, in the order of the inputs."""
    prompt_tokens: int
    cached_prompt_tokens: int


@dataclass(frozen=True, slots=True)
class _Job:
    """One call: what its inputs share."""

    request: pooling_pb2.EmbedRequest
    pooling: engine_pb2.Pooling
    call: Call
    ends: float | None  # on the loop's clock
    slots: asyncio.Semaphore


class Embedder:
    """Embeds by requests to the engine."""

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

    async def embed(self, request: pooling_pb2.EmbedRequest, call: Call) -> Vectors:
        """Embeds all inputs. Raises ServiceError."""
        self._model.check_name(request.model)
        welcome = self._engine.require_known()
        limits, size = limits_of(welcome, self._config), welcome.model.embedding_size
        defaults = self._require_pooling(size)
        check_embed(request, limits, size)
        caller = call.caller
        tenant = caller.act_as(request.tenant)
        check_terms(caller, request.priority)
        loop_time = asyncio.get_running_loop().time()
        request_id = request.request_id or secrets.token_hex(16)
        put_log_fields(request_id, tenant, call.trace)
        job = _Job(
            request,
            engine_pb2.Pooling(
                type=defaults.type,
                dimensions=request.dimensions,
                normalize=request.normalize if request.HasField("normalize") else defaults.normalize,
            ),
            call,
            None if call.time_left is None else loop_time + call.time_left,
            asyncio.Semaphore(_AHEAD * welcome.max_num_seqs * max(limits.num_ranks, 1)),
        )
        with self._generator.registry.group(request_id, caller, len(request.inputs)) as members:
            with self._limits.reading(request.ByteSize(), caller):
                prompts = [
                    await self._read(prompt, f"inputs[{place}]", limits, call.caller.tenant)
                    for place, prompt in enumerate(request.inputs)
                ]
            return await self._embed_all(job, prompts, members)

    def _require_pooling(self, size: int) -> PoolingDefaults:
        """Returns how the model pools. Raises Unsupported."""
        if self._model.pooling is None:
            problem = "makes no embeddings: its checkpoint does not say how, nor does --pooling-type"
            raise Unsupported({"model": problem})
        if not size:
            raise Unsupported({"model": "makes no embeddings: its engine cannot pool"})
        return self._model.pooling

    async def _read(
        self, prompt: prompt_pb2.Prompt, path: str, limits: Limits, tenant: str | None
    ) -> prompt_pb2.Prompt:
        """Returns an input as token ids. Raises InvalidRequest."""
        read = await self._prompts.read_for_generation(
            prompt, path, vocab_size=limits.vocab_size, max_model_len=limits.max_model_len, tenant=tenant
        )
        return prompt_pb2.Prompt(token_ids=prompt_pb2.TokenIds(ids=read.token_ids))

    async def _embed_all(
        self, job: _Job, prompts: list[prompt_pb2.Prompt], request_ids: tuple[str, ...]
    ) -> Vectors:
        """The first failure ends all requests."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._embed_one(job, prompt, request_id))
                    for prompt, request_id in zip(prompts, request_ids, strict=True)
                ]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        found = [task.result() for task in tasks]
        num_tokens = sum(len(prompt.token_ids.ids) for prompt in prompts)
        return Vectors([column for column, _ in found], num_tokens, sum(cached for _, cached in found))

    async def _embed_one(self, job: _Job, prompt: prompt_pb2.Prompt, request_id: str) -> tuple[bytes, int]:
        """Returns the vector of one input, and the tokens of it that were cached."""
        whole = job.request
        request = generation_pb2.GenerateRequest(
            request_id=request_id,
            prompt=prompt,
            sampling=generation_pb2.SamplingParams(temperature=0),
            stopping=generation_pb2.StoppingCriteria(max_tokens=1),
            output=generation_pb2.OutputOptions(text=False),
            priority=whole.priority,
            tenant=whole.tenant,
            cache=whole.cache,
        )
        async with job.slots, self._turns.turn(job.call.caller):
            left = None if job.ends is None else max(job.ends - asyncio.get_running_loop().time(), 0.0)
            call = replace(job.call, time_left=left)
            async with self._generator.open(request, call, whole=True, pooling=job.pooling) as stream:
                message = await stream.take()
                if message is None or stream.vector is None:
                    raise Aborted
                return stream.vector, message.prompt.cached_tokens
