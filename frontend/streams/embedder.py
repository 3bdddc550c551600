"""Embeds inputs: each is a request that pools, under the id of the call.

As many run at once as the tenant's quotas (streams/request_group.py) and the engine's rows make sense.
"""

import asyncio
from array import array
from dataclasses import dataclass

from frontend.call.call import Call
from frontend.call.limits import ConcurrencyLimits
from frontend.engine.client import EngineClient
from frontend.errors import Aborted, Unsupported
from frontend.model.info import ModelInfo, limits_of
from frontend.model.pooling_config import PoolingDefaults
from frontend.prompts.prompt_reader import PromptReader
from frontend.streams.generator import Generator
from frontend.streams.request_group import RequestGroup, RequestGroups
from frontend.streams.request_spec import CallMode
from frontend.streams.stream import Stream
from frontend.validation.pooling import check_embed
from frontend.validation.rules import Limits
from pagewire.config import FrontendConfig
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import generation_pb2, pooling_pb2

_AHEAD = 2
"""Requests of one call in flight, per row of an engine: its queue never runs dry, nor fills up."""


@dataclass(frozen=True, slots=True)
class Vectors:
    """What the inputs of one call have become."""

    columns: list[bytes]
    """float32 columns, in the order of the inputs."""
    prompt_tokens: int
    cached_prompt_tokens: int


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
        self._engine, self._limits = engine, limits
        self._groups = RequestGroups(generator, limits)

    async def embed(self, request: pooling_pb2.EmbedRequest, call: Call) -> Vectors:
        """Embeds all inputs. Raises ServiceError."""
        self._model.check_name(request.model)
        welcome = self._engine.require_known()
        limits, size = limits_of(welcome, self._config), welcome.model.embedding_size
        defaults = self._require_pooling(size)
        check_embed(request, limits, size)
        pooling = engine_pb2.Pooling(
            type=defaults.type,
            dimensions=request.dimensions,
            normalize=request.normalize if request.HasField("normalize") else defaults.normalize,
        )
        slots = asyncio.Semaphore(_AHEAD * welcome.max_num_seqs * max(limits.num_ranks, 1))
        with self._groups.open(request, call, len(request.inputs)) as group:
            with self._limits.reading(request.ByteSize(), call.caller):
                prompts = await self._read(request, limits, call.caller.tenant)
            return await self._embed_all(group, prompts, pooling, slots)

    def _require_pooling(self, size: int) -> PoolingDefaults:
        """Returns how the model pools. Raises Unsupported."""
        if self._model.pooling is None:
            problem = "makes no embeddings: its checkpoint does not say how, nor does --pooling-type"
            raise Unsupported({"model": problem})
        if not size:
            raise Unsupported({"model": "makes no embeddings: its engine cannot pool"})
        return self._model.pooling

    async def _read(
        self, request: pooling_pb2.EmbedRequest, limits: Limits, tenant: str | None
    ) -> "list[array[int]]":
        """Returns the inputs as token ids. Raises InvalidRequest."""
        prompts = []
        for place, prompt in enumerate(request.inputs):
            read = await self._prompts.read_for_generation(
                prompt,
                f"inputs[{place}]",
                vocab_size=limits.vocab_size,
                max_model_len=limits.max_model_len,
                prompt_only=True,
                tenant=tenant,
            )
            prompts.append(array("I", read.token_ids))
        return prompts

    async def _embed_all(
        self,
        group: RequestGroup,
        prompts: "list[array[int]]",
        pooling: engine_pb2.Pooling,
        slots: asyncio.Semaphore,
    ) -> Vectors:
        output = generation_pb2.OutputOptions(text=False)
        mode = CallMode(one_message=True, pooling=pooling)
        found = await self._groups.run(
            group, lambda index: group.request(index, prompts[index], output), mode, _read_vector, slots
        )
        cached = sum(cached for _, cached in found)
        return Vectors([column for column, _ in found], sum(map(len, prompts)), cached)


def _read_vector(stream: Stream, message: generation_pb2.GenerateResponse | None) -> tuple[bytes, int]:
    """Returns the vector of one input, and the tokens of it that were cached."""
    if message is None or stream.vector is None:
        raise Aborted
    return stream.vector, message.prompt.cached_tokens
