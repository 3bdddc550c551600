"""tei.v1 over a real socket, with stubs made of the protocol's file."""

import asyncio
import math
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frontend.auth.authenticator import Access, access_of
from frontend.rpc.interceptors.admission import _CALLS
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from pagewire_gateways.tei.servicer import SERVICES
from tests.frontend.fakes import (
    BEGIN,
    MAX_MODEL_LEN,
    Service,
    details_of,
    encode,
    fake_vector,
    in_time,
    pool,
    run_service,
)

LAST = Pooling(type=POOLING_TYPE_LAST, normalize=True)
STOP = generation_pb2.FINISH_REASON_STOP
EMBEDS: dict[str, Any] = {"tei": True, "pooling_type": "last"}


def embed(service: Service) -> Any:
    return tei_pb2_grpc.EmbedStub(service.channel)


def tokenize(service: Service) -> Any:
    return tei_pb2_grpc.TokenizeStub(service.channel)


def text(inputs: str = "hi", **fields: Any) -> tei_pb2.EmbedRequest:
    return tei_pb2.EmbedRequest(inputs=inputs, **fields)


async def each_of(*messages: Any) -> AsyncIterator[Any]:
    for message in messages:
        yield message


async def collect(call: Any) -> tuple[list[Any], grpc.aio.AioRpcError | None]:
    """All answers of a stream, and the error that ends it."""
    answers: list[Any] = []
    try:
        async for answer in call:
            answers.append(answer)
    except grpc.aio.AioRpcError as error:
        return answers, error
    return answers, None


async def code_of(call: Any) -> grpc.StatusCode | None:
    """The code of the error that a call ends with; None: it has none."""
    try:
        await call
    except grpc.aio.AioRpcError as error:
        return error.code()
    return None


async def refusal(call: Any) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


def fields_of(error: grpc.aio.AioRpcError) -> list[str]:
    return [each.field for each in details_of(error)["BadRequest"].field_violations]


async def test_a_text_becomes_a_vector(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        answer = await embed(service).Embed(text("yé"))
        ids = [BEGIN, *encode("yé")]
        assert list(answer.embeddings) == fake_vector(ids, LAST), "normalized unless told otherwise"
        about = answer.metadata
        assert (about.compute_chars, about.compute_tokens) == (2, len(ids))
        stages = about.tokenization_time_ns + about.queue_time_ns + about.inference_time_ns
        assert about.tokenization_time_ns > 0 and about.inference_time_ns > 0
        assert stages <= about.total_time_ns
        plain = await embed(service).Embed(text("x", normalize=False, dimensions=3))
        pooling = Pooling(type=POOLING_TYPE_LAST, normalize=False, dimensions=3)
        assert list(plain.embeddings) == fake_vector([BEGIN, *encode("x")], pooling)


async def test_truncation_keeps_what_the_tokenizer_adds(checkpoint):
    long = "a" * MAX_MODEL_LEN + "b"
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        assert fields_of(await refusal(embed(service).Embed(text(long)))) == ["inputs"]
        for direction, kept in (
            (tei_pb2.TRUNCATION_DIRECTION_RIGHT, "a" * (MAX_MODEL_LEN - 1)),
            (tei_pb2.TRUNCATION_DIRECTION_LEFT, "a" * (MAX_MODEL_LEN - 2) + "b"),
        ):
            answer = await embed(service).Embed(text(long, truncate=True, truncation_direction=direction))
            assert answer.metadata.compute_tokens == MAX_MODEL_LEN
            sent = service.engine.requests.get_nowait()
            assert unpack_u32(sent.prompt_token_ids) == [BEGIN, *encode(kept)]


async def test_a_deadline_ends_the_request(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call, sent, _ = await in_time(service, lambda seconds: embed(service).Embed(text(), timeout=seconds))
        assert (await refusal(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        aborted = await asyncio.wait_for(service.engine.aborts.get(), 30)
        assert aborted.handle == sent.handle


WRONG = [
    (text(""), "inputs"),
    (text("a", dimensions=0), "dimensions"),
    (text("a", dimensions=9), "dimensions"),
    (text("a", prompt_name="query"), "prompt_name"),
    (text("a", truncation_direction=7), "truncation_direction"),
    (text("a" * (300 << 10), truncate=True), "inputs"),
]


async def test_what_is_wrong_is_named(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        for request, field in WRONG:
            error = await refusal(embed(service).Embed(request))
            assert error.code() is grpc.StatusCode.INVALID_ARGUMENT and fields_of(error) == [field], request
        wrong = tokenize(service).Tokenize(tei_pb2.EncodeRequest(inputs="a", prompt_name="query"))
        assert fields_of(await refusal(wrong)) == ["prompt_name"]
        assert fields_of(await refusal(tokenize(service).Decode(tei_pb2.DecodeRequest(ids=[9999])))) == [
            "ids"
        ]
        assert service.engine.requests.empty()


async def test_a_model_that_does_not_embed(checkpoint):
    async with run_service(checkpoint, tei=True) as service:
        error = await refusal(embed(service).Embed(text()))
        assert fields_of(error) == ["model"] and "--pooling-type" in str(error.details())


async def test_info(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert (info.model_id, info.model_dtype) == ("fake", "float32") and info.version
        assert info.model_type == tei_pb2.MODEL_TYPE_EMBEDDING and info.max_input_length == MAX_MODEL_LEN
        assert (info.max_batch_tokens, info.max_batch_requests) == (256, 32)
        assert info.max_client_batch_size == 1024 and info.max_concurrent_requests == 4096
        assert info.tokenization_workers >= 1 and not info.HasField("sha")


async def test_texts_are_ordered_by_relevance(checkpoint, tmp_path):
    template = tmp_path / "pair.jinja"
    template.write_text("{{ query }}:{{ document }}")
    options = {"tei": True, "score_template": str(template), "score_tokens": "y,n"}
    logits = Pooling(type=POOLING_TYPE_LAST, token_ids=encode("yn"))

    def raw(text: str) -> float:
        yes, no = fake_vector(encode(f"q:{text}"), logits)
        return yes - no

    async with run_service(checkpoint, pool, **options) as service:
        rerank = tei_pb2_grpc.RerankStub(service.channel)
        texts = ["a", "bbb", ""]
        answer = await rerank.Rerank(tei_pb2.RerankRequest(query="q", texts=texts, raw_scores=True))
        order = sorted(range(3), key=lambda index: -raw(texts[index]))
        assert [each.index for each in answer.ranks] == order
        assert [each.score for each in answer.ranks] == [raw(texts[index]) for index in order]
        assert not answer.ranks[0].HasField("text") and answer.metadata.compute_chars == 5
        answer = await rerank.Rerank(tei_pb2.RerankRequest(query="q", texts=texts, return_text=True))
        assert [each.text for each in answer.ranks] == [texts[index] for index in order]
        assert answer.ranks[0].score == pytest.approx(1 / (1 + math.exp(-raw(texts[order[0]]))))
        long = "x" * 2 * MAX_MODEL_LEN
        await rerank.Rerank(tei_pb2.RerankRequest(query="q", texts=[long], truncate=True))
        for request, field in (
            (tei_pb2.RerankRequest(texts=["a"]), "query"),
            (tei_pb2.RerankRequest(query="q"), "texts"),
            (tei_pb2.RerankRequest(query="q", texts=["a", long]), "texts[1]"),
        ):
            assert fields_of(await refusal(rerank.Rerank(request))) == [field]


UNIMPLEMENTED = {"Embed": ("EmbedSparse", "EmbedAll")}


async def test_what_is_not_implemented(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        for name, methods in UNIMPLEMENTED.items():
            stub = getattr(tei_pb2_grpc, f"{name}Stub")(service.channel)
            for method in methods:
                error = await refusal(getattr(stub, method)(getattr(tei_pb2, f"{method}Request")()))
                assert error.code() is grpc.StatusCode.UNIMPLEMENTED and method in str(error.details())


def test_methods_are_for_callers_with_a_token_and_take_slots():
    for name in SERVICES:
        for method in tei_pb2.DESCRIPTOR.services_by_name[name].methods:
            path = f"/tei.v1.{name}/{method.name}"
            assert access_of(path) is Access.AUTHENTICATED
            is_built = name != "Info" and not method.client_streaming
            if is_built and method.name not in ("EmbedSparse", "EmbedAll"):
                assert path in _CALLS


async def test_reflection_lists_the_services(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        listing = reflection_pb2.ServerReflectionRequest(list_services="")
        call = reflection_pb2_grpc.ServerReflectionStub(service.channel).ServerReflectionInfo(iter([listing]))
        answer = await call.read()
        listed = {each.name for each in answer.list_services_response.service}
        assert {f"tei.v1.{name}" for name in SERVICES} <= listed
        call.cancel()


async def test_they_are_off_unless_asked_for(checkpoint):
    async with run_service(checkpoint, pool, pooling_type="last") as service:
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.UNIMPLEMENTED
