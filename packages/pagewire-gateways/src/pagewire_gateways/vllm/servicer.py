"""vllm.grpc.engine.VllmEngine: the wire between gateways and engines, as smg and llm-d speak it.

A gateway tokenizes, detokenizes, parses tools and serves the OpenAI and Anthropic APIs; here token ids come
in and go out, over the same Generator as everything else. On this wire every sampling value is explicit: an
absent one means the neutral value, not the model's, which GetModelInfo tells the gateway.
"""

import json
import time
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from frontend.errors import InvalidRequest
from frontend.field_names import renaming
from frontend.parts import FrontendParts
from frontend.rpc.call_context import Context, current_call, current_caller, sender
from frontend.rpc.error_mapping import guarded, unimplemented
from frontend.servicers.tokenizer import CHUNK, archive_of
from frontend.streams.request_registry import Aborts
from frontend.streams.request_spec import CallMode
from frontend.validation.requests import check_abort
from pagewire import __version__
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE
from pagewire.ipc.columns import unpack_f32_array
from pagewire.v1 import admin_pb2, generation_pb2, pooling_pb2
from pagewire_gateways.vllm.kv_events import KvEventWriter
from pagewire_gateways.vllm.messages import NAMES, AnswerWriter, read_request

MAX_SEQUENCE_NUMBER = (1 << 63) - 1
"""Of the last batch that a subscriber has had; there is room for the numbers of those that follow."""
DESCRIPTORS = (vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"],)


class VllmServicer(vllm_engine_pb2_grpc.VllmEngineServicer):  # type: ignore[misc]  # has no types
    """Generates for gateways, and tells them about the model and its load."""

    descriptors = DESCRIPTORS
    interceptors = ()

    def __init__(self, parts: FrontendParts, aborts: Aborts) -> None:
        self._parts, self._model, self._engine = parts, parts.model, parts.engine
        self._generator, self._embedder, self._aborts = parts.generator, parts.embedder, aborts
        self._state, self._write_timeouts = parts.state, parts.write_timeouts
        self._began = time.monotonic()

    def add_to(self, server: grpc.aio.Server) -> None:
        """Registers the service."""
        vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server(self, server)

    @guarded
    async def Generate(self, request: Any, context: Context) -> None:
        """Streams token ids: chunks, then one complete message for each sequence."""
        self._state.require_open()
        read = partial(read_request, request)
        call, size = current_call(context), request.ByteSize()
        asked, call = await self._generator.in_turn(read, request.request_id, size, call)
        with renaming(NAMES):
            async with self._generator.open(asked, call, CallMode(one_message=not request.stream)) as stream:
                answer = AnswerWriter(stream, chunks=request.stream)
                with self._write_timeouts.writer(sender(context)) as writer:
                    while (message := await stream.take()) is not None:
                        for response in answer.responses(message):
                            await writer.write(response)

    @guarded
    async def Abort(self, request: Any, context: Context) -> Any:
        """Ends requests of the caller's tenant."""
        ids = list(request.request_ids)
        check_abort(generation_pb2.AbortRequest(request_ids=ids))
        await self._aborts.abort(current_caller().may_abort_for(""), ids)
        return vllm_engine_pb2.AbortResponse()

    @guarded
    async def HealthCheck(self, request: Any, context: Context) -> Any:
        """Healthy: requests are accepted."""
        name = admin_pb2.ServerState.Name(self._state.state).removeprefix("SERVER_STATE_").lower()
        return vllm_engine_pb2.HealthCheckResponse(healthy=self._state.serves, message=name)

    @guarded
    async def GetModelInfo(self, request: Any, context: Context) -> Any:
        """The served model. tokenizer_path stays empty: GetTokenizer has the files."""
        facts = (self._engine.facts or self._engine.require()).model
        defaults = MessageToDict(self._model.default_sampling, preserving_proto_field_name=True)
        return vllm_engine_pb2.GetModelInfoResponse(
            model_path=self._model.source,
            is_generation=True,
            max_context_length=facts.max_model_len,
            vocab_size=facts.vocab_size,
            served_model_name=self._model.name,
            architectures=[facts.architecture],
            eos_token_ids=list(facts.eos_token_ids),
            pad_token_id=self._model.pad_token_id or 0,
            bos_token_id=self._model.bos_token_id or 0,
            max_req_input_len=facts.max_model_len - 1,
            default_sampling_params_json=json.dumps(defaults),
        )

    @guarded
    async def GetServerInfo(self, request: Any, context: Context) -> Any:
        """This frontend, and the layout of its engine cores, which it balances itself. With tokens, admins
        alone are told how many requests there are."""
        facts, caller = self._engine.facts or self._engine.require(), current_caller()
        is_told = caller.is_admin or caller.tenant is None
        return vllm_engine_pb2.GetServerInfoResponse(
            active_requests=self._generator.registry.num_requests if is_told else 0,
            uptime_seconds=time.monotonic() - self._began,
            server_type="pagewire",
            data_parallel_size=1,
            block_size=facts.block_size,
            model_dtype=facts.model.dtype,
            max_num_seqs=facts.max_num_seqs * max(len(self._engine.cores), 1),
            constrained_decoding_start="first_token",
            **self._media_facts(facts.model.media_kinds),
        )

    def _media_facts(self, media_kinds: Collection[int]) -> dict[str, str]:
        """Returns what says that `media_refs` are taken, and which. media_kinds: of the engine."""
        if MEDIA_KIND_IMAGE not in media_kinds or self._model.images.reader is None:
            return {}
        hosts = self._parts.config.media_hosts
        fetched = {"http" if entry.lower().startswith("http://") else "https" for entry in hosts}
        return {"mm_processor": "inprocess", "mm_media_ref_schemes": ",".join(["data", *sorted(fetched)])}

    @guarded
    async def GetLoads(self, request: Any, context: Context) -> Any:
        """The load of each engine core."""
        ranks = await self._engine.questions.loads()
        wanted = [rank for rank in ranks if not request.HasField("dp_rank") or rank.rank == request.dp_rank]
        facts = self._engine.facts
        most = facts.max_num_seqs if facts is not None else 0
        return vllm_engine_pb2.GetLoadsResponse(
            timestamp=datetime.now(UTC).isoformat(),
            version=__version__,
            dp_rank_count=len(wanted),
            loads=[_load(rank, most) for rank in wanted],
        )

    @guarded
    async def GetTokenizer(self, request: Any, context: Context) -> None:
        """Streams the tokenizer's files as a zip."""
        data, digest = await archive_of(self._parts)
        with self._write_timeouts.writer(sender(context)) as writer:
            for start in range(0, len(data), CHUNK):
                end = start + CHUNK
                last = digest if end >= len(data) else ""
                await writer.write(common_pb2.GetTokenizerChunk(data=data[start:end], sha256=last))

    @guarded
    async def FlushCache(self, request: Any, context: Context) -> Any:
        """Empties the prefix cache; requests in flight keep their blocks."""
        await self._engine.questions.reset_cache()
        return common_pb2.FlushCacheResponse(success=True, message="the prefix cache is empty")

    @guarded
    async def Embed(self, request: Any, context: Context) -> Any:
        """The vector of one prompt, as the model's checkpoint has it."""
        self._state.require_open()
        asked = pooling_pb2.EmbedRequest(request_id=request.request_id)
        copy = partial(asked.inputs.add().token_ids.ids.extend, request.tokenized.input_ids)
        call, size = current_call(context), request.ByteSize()
        _, call = await self._generator.in_turn(copy, request.request_id, size, call)
        with renaming(NAMES):
            vectors = await self._embedder.embed(asked, call)
        values = unpack_f32_array(vectors.columns[0])
        return vllm_engine_pb2.EmbedResponse(
            embedding=values, prompt_tokens=vectors.usage.prompt_tokens, embedding_dim=len(values)
        )

    StartProfile = unimplemented("StartProfile")
    StopProfile = unimplemented("StopProfile")

    @guarded
    async def SubscribeKvEvents(self, request: Any, context: Context) -> None:
        """Streams what the prefix caches hold, and how that changes, until the server stops."""
        self._engine.require()
        if request.start_sequence_number > MAX_SEQUENCE_NUMBER:
            raise InvalidRequest({"start_sequence_number": f"must be at most {MAX_SEQUENCE_NUMBER}"})
        events = KvEventWriter(current_caller().act_as(""), request.start_sequence_number)
        with (
            self._engine.cache_feeds.open() as feed,
            self._write_timeouts.writer(sender(context)) as writer,
        ):
            while True:  # ends by Draining
                await writer.write(events.message(await self._state.unless_closed(feed.take())))


def _load(rank: admin_pb2.RankLoad, max_num_seqs: int) -> Any:
    usage = rank.kv_used_tokens / rank.kv_total_tokens if rank.kv_total_tokens else 0.0
    return vllm_engine_pb2.SchedulerLoad(
        dp_rank=rank.rank,
        num_running_reqs=rank.running_requests,
        num_waiting_reqs=rank.waiting_requests,
        num_total_reqs=rank.running_requests + rank.waiting_requests,
        num_used_tokens=rank.kv_used_tokens,
        max_total_num_tokens=rank.kv_total_tokens,
        token_usage=usage,
        gen_throughput=rank.output_tokens_per_second,
        cache_hit_rate=rank.prefix_cache_hit_rate,
        utilization=usage,
        max_running_requests=max_num_seqs,
        num_waiting_uncached_tokens=rank.waiting_uncached_tokens,
    )
