"""Embed: requests that are one to their client."""

import asyncio
import json
import shutil

import grpc
import pytest
from tokenizers import Tokenizer
from tokenizers.processors import TemplateProcessing

from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    POOLING_TYPE_MEAN,
    NamedAdapter,
    Pooling,
)
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import model_pb2, pooling_pb2
from pagewire.v1.pooling_pb2 import EMBEDDING_KIND_SPARSE, EMBEDDING_KIND_TOKENS
from tests.frontend.fakes import (
    BEGIN,
    EMBEDDING_SIZE,
    END,
    details_of,
    encode,
    fake_vector,
    make_request,
    pool,
    run_service,
    until,
)
from tests.frontend.test_resume import next_of, restart
from tests.logprob_columns import pack_f32

LAST = Pooling(type=POOLING_TYPE_LAST, normalize=True)


def request_of(*inputs: object, **fields) -> pooling_pb2.EmbedRequest:
    prompts = [{"text": each} if isinstance(each, str) else {"token_ids": {"ids": each}} for each in inputs]
    return pooling_pb2.EmbedRequest(inputs=prompts, **fields)


def embedding(checkpoint, script=None, **config):
    return run_service(checkpoint, script, **{"pooling_type": "last", **config})


async def refused(service, request) -> tuple[grpc.StatusCode, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.pooling.Embed(request)
    details = details_of(caught.value)
    fields = details["BadRequest"].field_violations if "BadRequest" in details else ()
    return caught.value.code(), [violation.field for violation in fields]


async def test_vectors_in_the_order_of_the_request(checkpoint):
    async with embedding(checkpoint, pool) as service:
        response = await service.pooling.Embed(request_of([7, 8, 9], "é", [7]))
        prompts = [[7, 8, 9], [BEGIN, *encode("é")], [7]]
        assert [list(each.values) for each in response.embeddings] == [
            fake_vector(ids, LAST) for ids in prompts
        ]
        assert response.usage.prompt_tokens == 7 and not response.usage.completion_tokens
        sent = await next_of(service.engine.requests)
        assert sent.stopping.max_tokens == 1 and sent.sampling.n == 1 and sent.sampling.temperature == 0
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_EMBED in model.capabilities
        assert model.embedding_size == EMBEDDING_SIZE


async def test_a_decoder_without_a_head_embeds_and_refuses_to_generate(checkpoint, tmp_path):
    bare = tmp_path / "bare"
    shutil.copytree(checkpoint, bare)
    (bare / "config.json").write_text('{"architectures": ["MistralModel"]}')
    async with embedding(bare, pool) as service:
        assert (await service.pooling.Embed(request_of([7]))).embeddings
        with pytest.raises(grpc.aio.AioRpcError, match="its checkpoint has no output head") as caught:
            await service.generation.GenerateUnary(make_request())
        (violation,) = details_of(caught.value)["BadRequest"].field_violations
        assert violation.field == "model"
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert list(model.capabilities) == [
            model_pb2.CAPABILITY_EMBED,
            model_pb2.CAPABILITY_ADAPTERS,
            model_pb2.CAPABILITY_SCORE,
        ]


async def test_dimensions_normalization_and_raw_elements(checkpoint):
    async with embedding(checkpoint, pool, pooling_type="mean") as service:
        response = await service.pooling.Embed(
            request_of([7, 8], dimensions=3, normalize=False, raw_dtype="float32")
        )
        expected = fake_vector([7, 8], Pooling(type=POOLING_TYPE_MEAN, dimensions=3))
        assert response.embeddings[0].raw.data == pack_f32(expected)
        assert list(response.embeddings[0].raw.shape) == [3]


async def test_vectors_of_tokens(checkpoint):
    async with embedding(checkpoint, pool) as service:
        request = request_of("yé", [7], dimensions=3, kind=EMBEDDING_KIND_TOKENS)
        text, ids = (await service.pooling.Embed(request)).embeddings
        assert list(text.token_ids) == [BEGIN, *encode("yé")] and list(ids.token_ids) == [7]
        pooling = Pooling(type=POOLING_TYPE_ALL, dimensions=3, normalize=True)
        assert list(text.values) == fake_vector(text.token_ids, pooling)
        assert list(ids.values) == fake_vector([7], pooling)
        request = request_of([7, 8], kind=EMBEDDING_KIND_TOKENS, normalize=False, raw_dtype="ubinary")
        (packed,) = (await service.pooling.Embed(request)).embeddings
        assert list(packed.raw.shape) == [2, EMBEDDING_SIZE // 8] and list(packed.token_ids) == [7, 8]
        (plain,) = (await service.pooling.Embed(request_of([7, 8]))).embeddings
        assert not plain.token_ids and list(plain.values) == fake_vector([7, 8], LAST)


async def test_vectors_of_more_tokens_than_a_response_holds(checkpoint, monkeypatch):
    monkeypatch.setattr("frontend.streams.pooling.MAX_VECTOR_VALUES", 5 * EMBEDDING_SIZE)
    async with embedding(checkpoint, pool) as service:
        request = request_of([7, 8, 9], [7, 8], kind=EMBEDDING_KIND_TOKENS)
        assert len((await service.pooling.Embed(request)).embeddings) == 2
        request.inputs[1].token_ids.ids.append(9)
        assert await refused(service, request) == (grpc.StatusCode.INVALID_ARGUMENT, ["inputs"])
        request.dimensions = 4
        assert len((await service.pooling.Embed(request)).embeddings) == 2


async def test_a_checkpoint_that_has_vectors_of_tokens_alone(checkpoint, tmp_path):
    """As PyLate writes it."""
    folder = tmp_path / "colbert"
    shutil.copytree(checkpoint, folder)
    kinds = (("", "sentence_transformers.models.Transformer"), ("1_Dense", "pylate.models.Dense.Dense"))
    (folder / "modules.json").write_text(json.dumps([{"path": path, "type": kind} for path, kind in kinds]))
    (folder / "1_Dense").mkdir()
    fields = {"in_features": EMBEDDING_SIZE, "out_features": EMBEDDING_SIZE, "bias": False}
    fields |= {"activation_function": "torch.nn.modules.linear.Identity", "use_residual": False}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(fields))
    options = {"pooling_type": "auto", "engine_options": {"head_sizes": [EMBEDDING_SIZE]}}
    async with embedding(folder, pool, **options) as service:
        (found,) = (await service.pooling.Embed(request_of([7, 8], kind=EMBEDDING_KIND_TOKENS))).embeddings
        pooling = (await next_of(service.engine.requests)).pooling
        assert pooling == Pooling(type=POOLING_TYPE_ALL, normalize=True, head=1)
        assert list(found.values) == fake_vector([7, 8], pooling)
        assert await refused(service, request_of([7])) == (grpc.StatusCode.INVALID_ARGUMENT, ["kind"])
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_EMBED in model.capabilities
        assert model_pb2.CAPABILITY_SCORE not in model.capabilities
        scored = pooling_pb2.ScoreRequest(query={"text": "q"}, documents=[{"text": "a"}])
        with pytest.raises(grpc.aio.AioRpcError, match="a score is the cosine of vectors of texts"):
            await service.pooling.Score(scored)


async def test_sparse_vectors(checkpoint, tmp_path):
    """As sentence-transformers writes a SparseEncoder."""
    folder = tmp_path / "splade"
    shutil.copytree(checkpoint, folder)
    kinds = (("", "MLMTransformer"), ("1_SpladePooling", "SpladePooling"))
    modules = [
        {"path": path, "type": f"sentence_transformers.sparse_encoder.models.{kind}"} for path, kind in kinds
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_SpladePooling").mkdir()
    (folder / "1_SpladePooling" / "config.json").write_text('{"pooling_strategy": "max"}')
    options = {"pooling_type": "auto", "engine_options": {"head_sizes": [0, 0, EMBEDDING_SIZE]}}
    async with embedding(folder, pool, **options) as service:
        (found,) = (await service.pooling.Embed(request_of([7, 8], kind=EMBEDDING_KIND_SPARSE))).embeddings
        pooling = (await next_of(service.engine.requests)).pooling
        assert pooling == Pooling(type=POOLING_TYPE_MAX, head=3)
        expected = {place: value for place, value in enumerate(fake_vector([7, 8], pooling)) if value}
        assert dict(zip(found.token_ids, found.values, strict=True)) == expected
        assert list(found.token_ids) == sorted(expected)
        for fields in (
            {"dimensions": 2},
            {"raw_dtype": "float32"},
            {"kind": EMBEDDING_KIND_TOKENS},
            {"kind": 0},
        ):
            request = request_of([7], **{"kind": EMBEDDING_KIND_SPARSE, **fields})
            assert await refused(service, request) == (grpc.StatusCode.INVALID_ARGUMENT, [*fields])
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_SCORE not in model.capabilities
    async with embedding(checkpoint, pool, **options | {"pooling_type": "splade"}) as service:
        assert (await service.pooling.Embed(request_of([7], kind=EMBEDDING_KIND_SPARSE))).embeddings
    async with embedding(checkpoint, pool, pooling_type="splade") as service:
        assert (await refused(service, request_of([7], kind=EMBEDDING_KIND_SPARSE)))[1] == ["model"]
    async with embedding(checkpoint, pool) as service:
        assert (await refused(service, request_of([7], kind=EMBEDDING_KIND_SPARSE)))[1] == ["kind"]


@pytest.fixture
def sentences(checkpoint, tmp_path):
    """A checkpoint with prompts, of texts with at most 8 tokens."""
    folder = tmp_path / "sentences"
    shutil.copytree(checkpoint, folder)
    prompts = {"prompts": {"query": "find ", "document": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 8}))
    return folder


async def test_prompts_of_the_checkpoint_precede_texts(sentences):
    async with embedding(sentences, pool) as service:
        for name, before in ((None, "find "), ("query", "find "), ("document", ""), ("", "")):
            await service.pooling.Embed(request_of("a", prompt_name=name))
            sent = await next_of(service.engine.requests)
            assert unpack_u32(sent.prompt_token_ids) == [BEGIN, *encode(f"{before}a")]
        await service.pooling.Embed(request_of([7, 8]))  # ids have none by default
        assert unpack_u32((await next_of(service.engine.requests)).prompt_token_ids) == [7, 8]
        assert (await refused(service, request_of([7], prompt_name="query")))[1] == ["prompt_name"]
        with pytest.raises(grpc.aio.AioRpcError, match="must be one of: query, document"):
            await service.pooling.Embed(request_of("a", prompt_name="passage"))
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert dict(model.embedding_texts.prompts) == {"query": "find ", "document": ""}
        assert model.embedding_texts.default_prompt_name == "query"
        assert model.embedding_texts.max_seq_length == 8


async def test_texts_are_cut_after_max_seq_length(sentences):
    async with embedding(sentences, pool) as service:
        texts = request_of("z" * 10, "zz", prompt_name="")
        texts.inputs.add(text="y" + "z" * 9, truncate_to=4)  # the request says where, and at which end
        response = await service.pooling.Embed(texts)
        assert [each.truncated_tokens for each in response.embeddings] == [3, 0, 7]
        sent = [unpack_u32((await next_of(service.engine.requests)).prompt_token_ids) for _ in range(3)]
        kept = [[BEGIN, *encode(text)] for text in ("z" * 7, "zz", "zzz")]
        assert sorted(sent) == sorted(kept) and response.usage.prompt_tokens == sum(map(len, kept))
        (ids,) = (await service.pooling.Embed(request_of([7] * 9))).embeddings
        assert not ids.truncated_tokens, "ids are as the client has them"


async def test_a_cut_keeps_the_tokens_at_the_end_of_a_text(sentences):
    """Those of which Qwen3-Embedding and BERT take the state, or see the end."""
    tokenizer = Tokenizer.from_file(str(sentences / "tokenizer.json"))
    names = {token: tokenizer.id_to_token(token) for token in (BEGIN, END)}
    tokenizer.post_processor = TemplateProcessing(
        single=f"{names[BEGIN]} $A {names[END]}", special_tokens=[(name, id) for id, name in names.items()]
    )
    tokenizer.save(str(sentences / "tokenizer.json"))
    async with embedding(sentences, pool) as service:
        (cut,) = (await service.pooling.Embed(request_of("z" * 10, prompt_name=""))).embeddings
        sent = unpack_u32((await next_of(service.engine.requests)).prompt_token_ids)
        assert sent == [BEGIN, *encode("z" * 6), END] and cut.truncated_tokens == 4


async def test_all_of_them_are_of_the_class_and_the_tenant_of_the_whole(checkpoint):
    fields = {"priority": -3, "tenant": "acme", "cache": {"salt": "s", "bypass": True}}
    async with embedding(checkpoint, pool) as service:
        await service.pooling.Embed(request_of("a", "b", **fields))
        for request in [await next_of(service.engine.requests) for _ in range(2)]:
            assert (request.priority, request.tenant) == (-3, "acme")
            assert (request.cache_salt, request.cache_bypass) == ("s", True)


@pytest.mark.parametrize(
    ("fields", "inputs", "path"),
    [
        ({}, [], "inputs"),
        ({}, ["a"] * 1025, "inputs"),
        ({}, ["a", ""], "inputs[1].text"),
        ({}, ["a", []], "inputs[1].token_ids.ids"),
        ({}, ["a", [512]], "inputs[1].token_ids.ids"),
        ({}, ["a", "a" * 200], "inputs[1]"),
        ({"dimensions": 9}, ["a"], "dimensions"),
        ({"raw_dtype": "int8"}, ["a"], "raw_dtype"),
        ({"raw_dtype": "binary", "dimensions": 7}, ["a"], "raw_dtype"),
        ({"prompt_name": "query"}, ["a"], "prompt_name"),
        ({"request_id": "a\n"}, ["a"], "request_id"),
        ({"request_id": "a" * 252}, ["a"], "request_id"),
        ({"kind": 9}, ["a"], "kind"),
        ({"priority": 1001}, ["a"], "priority"),
        ({"tenant": "t" * 257}, ["a"], "tenant"),
        ({"cache": {"salt": "s" * 257}}, ["a"], "cache.salt"),
    ],
)
async def test_what_is_refused(checkpoint, fields, inputs, path):
    async with embedding(checkpoint, pool) as service:
        expected = (grpc.StatusCode.INVALID_ARGUMENT, [path])
        assert await refused(service, request_of(*inputs, **fields)) == expected
        assert service.engine.requests.empty()


@pytest.mark.parametrize("config", [{"pooling_type": "auto"}, {"engine_options": {"embedding_size": 0}}])
async def test_a_model_that_does_not_embed(checkpoint, config):
    async with embedding(checkpoint, pool, **config) as service:
        assert await refused(service, request_of("a")) == (grpc.StatusCode.INVALID_ARGUMENT, ["model"])
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_EMBED not in model.capabilities and not model.embedding_size


async def test_what_has_not_begun_waits_as_long_as_what_has(checkpoint):
    """The engine dies between two inputs of a call: --ready-timeout is that of new calls."""
    async with embedding(checkpoint, ready_timeout=0) as service:
        generator, may_begin = service.frontend.parts.generator, asyncio.Event()
        route = generator._route

        async def held(spec):
            if list(spec.prompt.token_ids) == [8]:
                await may_begin.wait()
            return await route(spec)

        generator._route = held
        call = service.pooling.Embed(request_of([7], [8]))
        assert unpack_u32((await next_of(service.engine.requests)).prompt_token_ids) == [7]
        await service.engine.stop()
        while service.frontend.state.serves:
            await service.frontend.state.changed()
        assert (await refused(service, request_of([9])))[0] is grpc.StatusCode.UNAVAILABLE
        may_begin.set()
        await until(lambda: service.frontend.engine.journal.num_waiting == 2)
        service.engine.script = pool
        await restart(service)
        vectors = [list(each.values) for each in (await call).embeddings]
        assert vectors == [fake_vector([7], LAST), fake_vector([8], LAST)]


async def test_all_inputs_have_one_adapter(checkpoint):
    """That of the call's beginning, also where the name stands for another one meanwhile."""
    async with embedding(checkpoint, pool) as service:
        names = service.frontend.parts.engine.adapters

        def name(digest: bytes) -> None:
            names._put(NamedAdapter(name="a", source="/a", digest=digest))

        name(b"1" * 32)
        resolve, resolved = names.resolve, []

        async def then_another(*given):
            resolved.append(await resolve(*given))
            name(b"2" * 32)
            return resolved[-1]

        names.resolve = then_another
        await service.pooling.Embed(request_of([7], [8], [9], adapter="a"))
        sent = [(await next_of(service.engine.requests)).adapter.digest for _ in range(3)]
        assert sent == [b"1" * 32] * 3 and len(resolved) == 1
