"""vllm.grpc.engine.VllmEngine over a real socket, with the stubs of its publisher."""

import asyncio
import io
import json
import zipfile
from typing import Any

import grpc
import pytest
from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from frontend.auth.authenticator import Access, access_of
from frontend.call.messages import SMALL_MESSAGE_BYTES
from frontend.errors import InvalidRequest
from frontend.grpc_services import DESCRIPTORS
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import MEDIA_KIND_IMAGE, Pooling
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire.v1 import generation_pb2
from pagewire_gateways.vllm.messages import read_request
from tests.frontend.fakes import (
    END,
    Output,
    Service,
    abort_in_turn,
    encode,
    fake_vector,
    pool,
    run_service,
    say,
)
from tests.patience import soon
from tests.vision_models import make_vision_model

SERVICE = "vllm.grpc.engine.VllmEngine"


def stub(service: Service) -> Any:
    """A client of the service."""
    return vllm_engine_pb2_grpc.VllmEngineStub(service.channel)


def make(**fields: Any) -> Any:
    """A request; its prompt is three tokens unless given."""
    fields.setdefault("tokenized", {"input_ids": [7, 8, 9]})
    return vllm_engine_pb2.GenerateRequest(request_id="r", **fields)


async def answers(service: Service, **fields: Any) -> list[Any]:
    """All messages of a request."""
    return [message async for message in stub(service).Generate(make(**fields))]


async def test_a_stream_has_chunks_and_one_end_per_sequence(checkpoint):
    def script(request):
        yield [Output([10, 11], index=0), Output([12], index=1)]
        end = generation_pb2.FINISH_REASON_EOS
        yield [
            Output([END], end, END, index=0),
            Output([13], generation_pb2.FINISH_REASON_MAX_TOKENS, index=1),
        ]

    async with run_service(checkpoint, script, vllm_engine=True) as service:
        messages = await answers(service, stream=True, sampling_params={"n": 2})
        chunks = [each.chunk for each in messages if each.HasField("chunk")]
        ends = {each.complete.index: each.complete for each in messages if each.HasField("complete")}
        tokens: dict[int, list[int]] = {0: [], 1: []}
        for chunk in chunks:
            tokens[chunk.index] += chunk.token_ids
            assert chunk.prompt_tokens == 3 and chunk.completion_tokens == len(tokens[chunk.index])
        assert tokens == {0: [10, 11, END], 1: [12, 13]}
        assert {index: list(end.output_ids) for index, end in ends.items()} == tokens
        assert [ends[index].finish_reason for index in (0, 1)] == ["stop", "length"]
        assert ends[0].WhichOneof("matched_stop") is None and len(ends) == 2


async def test_without_a_stream_there_is_one_message(checkpoint):
    async with run_service(checkpoint, say([10], [11]), vllm_engine=True) as service:
        (message,) = await answers(service, sampling_params={"stop_token_ids": [11]})
        assert list(message.complete.output_ids) == [10, 11]


async def test_absent_values_are_neutral_not_the_models(checkpoint):
    async with run_service(checkpoint, say([10]), vllm_engine=True) as service:
        await answers(service)
        sampling = (await soon(service.engine.requests.get())).sampling
        assert (sampling.temperature, sampling.top_k, sampling.top_p) == (1.0, 0, 1.0), "not 0.5 and 40"
        assert sampling.repetition_penalty == 1.0 and sampling.n == 1
        params = {"temperature": 0.0, "top_k": (1 << 32) - 1, "seed": -2, "logit_bias": {5: 1.0}}
        await answers(service, sampling_params={**params, "max_tokens": 9, "ignore_eos": True})
        sent = await soon(service.engine.requests.get())
        assert sent.sampling.temperature == 0 and sent.sampling.top_k == 0
        assert sent.sampling.seed == (1 << 64) - 2 and dict(sent.sampling.logit_bias) == {5: 1.0}
        assert sent.stopping.max_tokens == 9 and sent.stopping.ignore_eos
        assert list(unpack_u32(sent.prompt_token_ids)) == [7, 8, 9]


def test_no_number_of_sampling_is_left_to_the_model():
    """Its generation_config.json may have defaults for all of them."""
    sampling = read_request(make(sampling_params={})).sampling
    fields = generation_pb2.SamplingParams.DESCRIPTOR.fields
    assert all(sampling.HasField(field.name) for field in fields if field.type == field.TYPE_FLOAT)
    assert sampling.HasField("top_k") and sampling.HasField("n")


async def test_logprobs_of_prompt_and_output(checkpoint):
    async with run_service(checkpoint, say([10, 11]), vllm_engine=True) as service:
        params = {"logprobs": 2, "prompt_logprobs": 1}
        (message,) = await answers(service, sampling_params=params)
        output, prompt = message.complete.output_logprobs, message.complete.input_logprobs
        assert list(output.token_ids) == [10, 11] and len(output.token_logprobs) == 2
        assert [len(top.token_ids) for top in output.top_logprobs] == [2, 2]
        assert list(prompt.token_ids) == [7, 8, 9]
        assert [each.HasField("value") for each in prompt.token_logprobs] == [False, True, True]


async def test_stop_strings_say_what_matched(checkpoint):
    async with run_service(checkpoint, say(encode("he"), encode("llo")), vllm_engine=True) as service:
        (message,) = await answers(service, sampling_params={"stop": ["ll"]})
        assert message.complete.matched_stop_str == "ll" and message.complete.finish_reason == "stop"


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"sampling_params": {"top_p": 2}}, "sampling_params.top_p"),
        ({"sampling_params": {"logit_bias": {-1: 1}}}, "sampling_params.logit_bias"),
        ({"sampling_params": {"logprobs": -2}}, "sampling_params.logprobs"),
        ({"tokenized": {"input_ids": [512]}}, "tokenized.input_ids"),
        ({"tokenized": {}}, "tokenized.input_ids"),
        ({"data_parallel_rank": 4}, "data_parallel_rank"),
        ({"kv_transfer_params_json": "{}"}, "kv_transfer_params_json"),
        ({"media_refs": {"items": [{"url": "x"}]}}, "media_refs.items[0].url"),
        ({"media_refs": {"items": [{"url": "https://a.b/c"}]}}, "media_refs.items[0].url"),
        ({"media_refs": {"items": [{"url": "data:;base64,YQ==", "modality": 3}]}}, "media_refs.items[0].mod"),
        ({"mm_inputs": {}}, "mm_inputs"),
    ],
)
async def test_a_field_that_is_wrong_is_named(checkpoint, fields, named):
    async with run_service(checkpoint, say([10]), vllm_engine=True) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(service, **fields)
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith(named), refused.value.details()


def test_media_refs_are_images_of_token_ids():
    items = [{"url": "data:;base64,YQ=="}, {"url": "https://a.b/c.png", "modality": 1}]
    prompt = read_request(make(media_refs={"items": items})).prompt
    assert [each.uri for each in prompt.media] == [each["url"] for each in items]
    assert list(prompt.token_ids.ids) == [7, 8, 9]
    with pytest.raises(InvalidRequest, match="media_refs: is of prompts that are tokenized"):
        read_request(vllm_engine_pb2.GenerateRequest(text="a", media_refs={"items": items}))


async def test_a_gateway_is_told_which_media_it_may_name(tmp_path):
    folder = make_vision_model(tmp_path, "llava")
    hosts = {"media_hosts": ("a.b", "http://c")}
    for kinds, flags, expected in (
        ([], hosts, ("", "")),
        ([MEDIA_KIND_IMAGE], {}, ("inprocess", "data")),
        ([MEDIA_KIND_IMAGE], hosts, ("inprocess", "data,http,https")),
    ):
        options = {"media_kinds": kinds}
        async with run_service(folder, vllm_engine=True, engine_options=options, **flags) as service:
            told = await stub(service).GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
            assert (told.mm_processor, told.mm_media_ref_schemes) == expected


async def test_an_abort_ends_a_request(checkpoint):
    async with run_service(checkpoint, None, vllm_engine=True) as service:
        running = asyncio.create_task(answers(service, stream=True))
        await soon(service.engine.requests.get())
        await stub(service).Abort(vllm_engine_pb2.AbortRequest(request_ids=["r"]))
        assert (await soon(running))[-1].complete.finish_reason == "abort"


async def test_what_a_gateway_asks_first(checkpoint):
    async with run_service(checkpoint, vllm_engine=True) as service:
        service.engine.load.kv_used_tokens = 256
        service.engine.load.running_requests = 3
        client = stub(service)
        info = await client.GetModelInfo(vllm_engine_pb2.GetModelInfoRequest())
        assert (info.served_model_name, info.vocab_size, info.max_context_length) == ("fake", 512, 200)
        assert (
            list(info.eos_token_ids) == [END] and json.loads(info.default_sampling_params_json)["top_k"] == 40
        )
        assert (await client.HealthCheck(vllm_engine_pb2.HealthCheckRequest())).healthy
        server = await client.GetServerInfo(vllm_engine_pb2.GetServerInfoRequest())
        assert server.max_num_seqs == 32 and server.block_size == 16
        (load,) = (await client.GetLoads(vllm_engine_pb2.GetLoadsRequest())).loads
        assert load.num_running_reqs == 3 and load.token_usage == 0.25
        assert not (await client.GetLoads(vllm_engine_pb2.GetLoadsRequest(dp_rank=7))).loads
        chunks = [chunk async for chunk in client.GetTokenizer(common_pb2.GetTokenizerRequest())]
        archive = zipfile.ZipFile(io.BytesIO(b"".join(chunk.data for chunk in chunks)))
        assert "tokenizer.json" in archive.namelist() and len(chunks[-1].sha256) == 64
        assert (await client.FlushCache(common_pb2.FlushCacheRequest())).success
        assert service.engine.num_resets == 1


async def test_embeddings(checkpoint):
    async with run_service(checkpoint, pool, vllm_engine=True, pooling_type="last") as service:
        asked = vllm_engine_pb2.EmbedRequest(request_id="a", tokenized={"input_ids": [7, 8, 9]})
        answer = await stub(service).Embed(asked)
        assert list(answer.embedding) == fake_vector([7, 8, 9], Pooling(type=1, normalize=True))
        assert (answer.prompt_tokens, answer.embedding_dim) == (3, 8)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(service).Embed(vllm_engine_pb2.EmbedRequest())
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("tokenized.input_ids")


@pytest.mark.parametrize("name", ["StartProfile", "StopProfile"])
async def test_what_is_not_implemented_says_so(checkpoint, name):
    method = vllm_engine_pb2.DESCRIPTOR.services_by_name["VllmEngine"].methods_by_name[name]
    request = getattr(
        vllm_engine_pb2 if method.input_type.file.name == "vllm_engine.proto" else common_pb2,
        method.input_type.name,
    )()
    async with run_service(checkpoint, vllm_engine=True) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            call = getattr(stub(service), name)(request)
            _ = [each async for each in call] if method.server_streaming else await call
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
        assert name in refused.value.details()


async def test_it_is_served_only_when_asked_for(checkpoint):
    async with run_service(checkpoint, say([10])) as service:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await answers(service)
        assert refused.value.code() == grpc.StatusCode.UNIMPLEMENTED
    assert SERVICE not in {service.full_name for service in DESCRIPTORS}
    assert access_of(f"/{SERVICE}/FlushCache") is Access.ADMINS
    assert access_of(f"/{SERVICE}/Generate") is Access.AUTHENTICATED


def _stored(
    tenant: str, parent: int, *numbers: int, salt: str = "", adapter: str = ""
) -> engine_pb2.CacheChange:
    """Blocks of two tokens."""
    stored = engine_pb2.CachedBlocks(
        tenant=tenant,
        cache_salt=salt,
        parent_hash=parent.to_bytes(16, "little") if parent else b"",
        hashes=b"".join(number.to_bytes(16, "little") for number in numbers),
        token_ids=pack_u32(range(2 * len(numbers))),
        adapter=adapter,
        adapter_digest=32 * b"\xff" if adapter else b"",
    )
    return engine_pb2.CacheChange(stored=stored)


async def test_kv_events_are_a_snapshot_and_then_changes_numbered_without_gaps(checkpoint):
    async with run_service(checkpoint, say([10]), vllm_engine=True) as service:
        events = stub(service).SubscribeKvEvents(
            common_pb2.SubscribeKvEventsRequest(start_sequence_number=40)
        )
        watch = (await soon(service.engine.watches.get())).watch
        for changes, parts in (
            ([_stored("", 0, 1, 2)], 1),
            ([_stored("", 2, 3, salt="s"), _stored("other", 0, 4), _stored("", 0, 5, adapter="legal")], 0),
            ([engine_pb2.CacheChange(removed_hashes=(2**64 - 1).to_bytes(16, "little"))], 0),
            ([engine_pb2.CacheChange(cleared={})], 0),
        ):
            message = engine_pb2.CacheChanges(watch=watch, num_parts=parts, changes=changes)
            await service.engine.send(engine_pb2.EngineMessage(cache_changes=message))
        snapshot, stored, removed, cleared = [await events.read() for _ in range(4)]
        assert [each.sequence_number for each in (snapshot, stored, removed, cleared)] == [41, 42, 43, 44]
        assert [each.WhichOneof("data") for each in snapshot.events] == ["cleared", "stored"]
        assert (snapshot.snapshot.index, snapshot.snapshot.count, snapshot.snapshot.blocks) == (0, 1, 2)
        blocks = snapshot.events[1].stored.blocks
        assert [(each.block_hash, list(each.token_ids), each.block_size) for each in blocks] == [
            (1, [0, 1], 2),
            (2, [2, 3], 2),
        ]
        event, adapted = stored.events
        assert adapted.stored.lora_name == "legal" and adapted.stored.blocks[0].lora_id == -1
        assert not event.stored.HasField("lora_name") and not event.stored.blocks[0].HasField("lora_id")
        assert (event.stored.parent_block_hash, event.stored.cache_salt) == (2, "s"), "others' are left out"
        assert list(removed.events[0].removed.block_hashes) == [-1]
        assert cleared.events[0].HasField("cleared") and not cleared.HasField("snapshot")
        events.cancel()
        ended = await soon(service.engine.watches.get())
        assert (ended.watch, ended.ends) == (watch, True)


async def test_kv_events_cannot_be_numbered_beyond_what_the_wire_has(checkpoint):
    async with run_service(checkpoint, vllm_engine=True) as service:
        request = common_pb2.SubscribeKvEventsRequest(start_sequence_number=(1 << 64) - 1)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub(service).SubscribeKvEvents(request).read()
        assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        assert refused.value.details().startswith("start_sequence_number: ")


async def test_kv_events_are_for_admins_and_end_with_the_server(checkpoint):
    assert access_of(f"/{SERVICE}/SubscribeKvEvents") is Access.ADMINS
    async with run_service(checkpoint, say([10]), vllm_engine=True) as service:
        events = stub(service).SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest())
        await soon(service.engine.watches.get())
        service.frontend.state.close()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await events.read()
        assert ended.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_an_abort_of_what_waits_for_its_turn(checkpoint):
    prompt = {"input_ids": [7, 8, 9], "original_text": "x" * SMALL_MESSAGE_BYTES}
    async with run_service(checkpoint, pool, vllm_engine=True, pooling_type="last") as service:
        generate = vllm_engine_pb2.GenerateRequest(request_id="mine", tokenized=prompt)

        async def ask() -> list[str]:
            return [each.complete.finish_reason async for each in stub(service).Generate(generate)]

        assert await abort_in_turn(service, ask) == ["abort"]
        embed = vllm_engine_pb2.EmbedRequest(request_id="mine", tokenized=prompt)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await abort_in_turn(service, lambda: stub(service).Embed(embed))
        assert refused.value.code() == grpc.StatusCode.ABORTED
