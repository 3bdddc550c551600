"""tei.v1 over a real socket, with stubs made of the protocol's file."""

import asyncio
import math
import shutil
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frontend.auth.authenticator import Access, access_of
from frontend.auth.tokens import digest_of
from frontend.rpc.interceptors.admission import _CALLS, _STREAMS
from frontend.streams.classifier import activated
from pagewire.internal.v1.engine_pb2 import (
    POOLING_TYPE_ALL,
    POOLING_TYPE_CLS,
    POOLING_TYPE_LAST,
    POOLING_TYPE_MAX,
    Pooling,
)
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import generation_pb2
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from pagewire_gateways.tei.servicer import SERVICES
from tests.frontend import fakes
from tests.frontend.fakes import (
    BEGIN,
    EMBEDDING_SIZE,
    END,
    MAX_MODEL_LEN,
    Output,
    Service,
    details_of,
    encode,
    fake_vector,
    in_time,
    pool,
    run_service,
    until,
    write_checkpoint,
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


async def test_a_stream_answers_in_the_order_of_its_messages(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        texts = ["a", "bb", "ccc"]
        answers = asyncio.create_task(collect(embed(service).EmbedStream(each_of(*map(text, texts)))))
        handles = {}
        for _ in texts:
            sent = await asyncio.wait_for(service.engine.requests.get(), 30)
            handles[len(sent.prompt_token_ids)] = sent.handle
        assert service.frontend.parts.limits.num_calls == 1, (
            "a stream takes one slot, as a call of many inputs"
        )
        for size in sorted(handles, reverse=True):
            await service.engine.output(handles[size], Output((), STOP))
        found, error = await asyncio.wait_for(answers, 30)
        assert error is None
        vectors = [list(each.embeddings) for each in found]
        assert vectors == [fake_vector([BEGIN, *encode(each)], LAST) for each in texts]
        await until(lambda: service.frontend.parts.limits.num_calls == 0)


async def test_the_first_error_ends_a_stream_behind_the_answers_before_it(checkpoint):
    def script(request):
        return [] if len(request.prompt_token_ids) > 16 else pool(request)

    async with run_service(checkpoint, script, **EMBEDS) as service:
        messages = (text("a"), text("b"), text(""), text("never answered"))
        found, error = await collect(embed(service).EmbedStream(each_of(*messages)))
        assert error is not None and len(found) == 2 and fields_of(error) == ["inputs"]
        await until(lambda: service.frontend.parts.generator.registry.num_requests == 0)


async def test_a_stream_reads_no_further_ahead_than_it_may(checkpoint):
    async with run_service(checkpoint, max_multiplexed_requests=2, **EMBEDS) as service:
        texts = ["a", "bb", "ccc", "dddd"]
        answers = asyncio.create_task(collect(embed(service).EmbedStream(each_of(*map(text, texts)))))
        handles: dict[Any, int] = {}  # by prompt: what runs side by side has no order
        for place, each in enumerate(texts):
            for _ in range(1 if place else 2):
                if place < 3:
                    sent = await asyncio.wait_for(service.engine.requests.get(), 30)
                    handles[tuple(unpack_u32(sent.prompt_token_ids))] = sent.handle
            assert len(handles) <= 2 and service.frontend.parts.generator.registry.num_requests <= 2
            await service.engine.output(handles.pop((BEGIN, *encode(each))), Output((), STOP))
        found, error = await asyncio.wait_for(answers, 30)
        assert error is None and len(found) == 4 and service.engine.requests.empty()


async def test_a_cancelled_stream_aborts_its_requests(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call = embed(service).EmbedStream(each_of(text("a"), text("b")))
        reading = asyncio.create_task(call.read())
        sent = {(await asyncio.wait_for(service.engine.requests.get(), 30)).handle for _ in "ab"}
        call.cancel()
        ended = {(await asyncio.wait_for(service.engine.aborts.get(), 30)).handle for _ in "ab"}
        assert ended == sent
        await asyncio.gather(reading, return_exceptions=True)


@pytest.mark.parametrize("leave", ["close", "refuse"])
async def test_an_idle_stream_does_not_keep_the_server_from_stopping(checkpoint, leave):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        call = embed(service).EmbedStream()
        await call.write(text("a"))
        assert (await call.read()).embeddings
        getattr(service.frontend.parts.state, leave)()
        error = await refusal(asyncio.wait_for(call.read(), 30))
        assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_server_that_stops_answers_what_it_has(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call = embed(service).EmbedStream()
        await call.write(text("a"))
        sent = await asyncio.wait_for(service.engine.requests.get(), 30)
        stopping = asyncio.ensure_future(service.frontend.stop(30))
        await until(lambda: service.frontend.parts.state.closes)
        await service.engine.output(sent.handle, Output((), STOP))
        assert (await asyncio.wait_for(call.read(), 30)).embeddings
        error = await refusal(asyncio.wait_for(call.read(), 30))
        assert error.code() is grpc.StatusCode.UNAVAILABLE
        await asyncio.wait_for(stopping, 30)


async def test_clients_that_reset_streams_leave_nothing(checkpoint):
    """Whatever the server is about to do: read, wait for the engine, or answer."""

    def script(request):
        return pool(request) if len(request.prompt_token_ids) < 16 else []

    async with run_service(checkpoint, script, max_multiplexed_requests=2, **EMBEDS) as service:
        parts = service.frontend.parts
        for sent in range(6):
            for turns in range(8):
                call = embed(service).EmbedStream()
                for number in range(sent):
                    await call.write(text("a" if number % 2 else "this is never answered"))
                for _ in range(turns):
                    await asyncio.sleep(0)
                call.cancel()
        await until(lambda: not any(t.get_name().startswith("ordered stream") for t in asyncio.all_tasks()))
        assert not (parts.generator.registry.num_requests or parts.limits.num_calls)
        assert (await embed(service).Embed(text("a"))).embeddings


async def test_a_streams_deadline_ends_its_requests(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call, sent, _ = await in_time(
            service, lambda seconds: embed(service).EmbedStream(each_of(text()), timeout=seconds)
        )
        _, error = await collect(call)
        assert error is not None and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        aborted = await asyncio.wait_for(service.engine.aborts.get(), 30)
        assert aborted.handle == sent.handle


async def test_a_message_that_cannot_be_parsed_ends_its_stream(checkpoint):
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        stream = service.channel.stream_stream("/tei.v1.Embed/EmbedStream")
        found, error = await collect(stream(each_of(text("a").SerializeToString(), b"\xff")))
        assert error is not None and error.code() is grpc.StatusCode.INVALID_ARGUMENT and len(found) == 1
        await until(lambda: service.frontend.parts.limits.num_calls == 0)


async def test_prompts_and_the_length_of_the_checkpoint(checkpoint, tmp_path):
    folder = shutil.copytree(checkpoint, tmp_path / "sentences")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find "}}')
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    async with run_service(folder, pool, **EMBEDS) as service:
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert info.max_input_length == 8
        long = text("zzz", prompt_name="query")
        assert fields_of(await refusal(embed(service).Embed(long))) == ["inputs"], "TEI cuts on request only"
        long.truncate = True
        assert (await embed(service).Embed(long)).metadata.compute_tokens == 8
        sent = service.engine.requests.get_nowait()
        assert unpack_u32(sent.prompt_token_ids) == [BEGIN, *encode("find zz")]
        tokens = await tokenize(service).Tokenize(tei_pb2.EncodeRequest(inputs="a", prompt_name="query"))
        assert "".join(token.text for token in tokens.tokens) == "find a"


async def test_a_deadline_ends_the_request(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        call, sent, _ = await in_time(service, lambda seconds: embed(service).Embed(text(), timeout=seconds))
        assert (await refusal(call)).code() is grpc.StatusCode.DEADLINE_EXCEEDED
        aborted = await asyncio.wait_for(service.engine.aborts.get(), 30)
        assert aborted.handle == sent.handle


async def test_requests_take_slots(checkpoint):
    async with run_service(checkpoint, max_concurrent_requests=1, **EMBEDS) as service:
        waiting = embed(service).Embed(text())
        await asyncio.wait_for(service.engine.requests.get(), 30)
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        _, full = await collect(embed(service).EmbedStream(each_of(text())))
        assert full is not None and full.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        waiting.cancel()


async def test_requests_belong_to_the_tokens_tenant(checkpoint, tmp_path):
    tokens = tmp_path / "tokens.yaml"
    tokens.write_text(f"tokens:\n  - {{sha256: {digest_of('secret').hex()}, tenant: alice}}\n")
    headers = (("authorization", "Bearer secret"),)
    async with run_service(checkpoint, pool, auth_file=str(tokens), **EMBEDS) as service:
        assert (await refusal(embed(service).Embed(text()))).code() is grpc.StatusCode.UNAUTHENTICATED
        assert (await embed(service).Embed(text(), metadata=headers)).embeddings
        assert service.engine.requests.get_nowait().tenant == "alice"
        stream = embed(service).EmbedStream(metadata=headers)
        await stream.write(text())
        assert (await stream.read()).embeddings
        assert service.engine.requests.get_nowait().tenant == "alice"
        files = service.frontend._files
        await files.stop()
        files._interval = 0.01
        files.start()
        tokens.write_text("tokens: []\n")
        info = tei_pb2_grpc.InfoStub(service.channel).Info
        async with asyncio.timeout(60):
            while await code_of(info(tei_pb2.InfoRequest(), metadata=headers)) is None:
                await asyncio.sleep(0.01)
        await stream.write(text())
        assert (await refusal(stream.read())).code() is grpc.StatusCode.UNAUTHENTICATED, "revoked since"


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


async def test_tokens_of_a_text(checkpoint):
    async with run_service(checkpoint, **EMBEDS) as service:
        tokenizer = service.frontend.parts.model.tokenizer

        def ids_of(text: str) -> list[int]:
            return list(tokenizer.encode(text, add_special_tokens=False).token_ids)

        request = tei_pb2.EncodeRequest(inputs="hi é<|end|>", add_special_tokens=True)
        first, *tokens = (await tokenize(service).Tokenize(request)).tokens
        assert first == tei_pb2.SimpleToken(id=BEGIN, text="<|begin|>", special=True)
        assert [token.id for token in tokens] == [*ids_of("hi"), *encode(" é"), END]
        data = request.inputs.encode()
        assert tokens[0].text == "hi" and (tokens[0].start, tokens[0].stop) == (0, 2)
        assert all(token.text.encode() == data[token.start : token.stop] for token in tokens)
        assert not any(token.special for token in tokens), "the text of a special token is part of the text"
        decode = tei_pb2.DecodeRequest(ids=[BEGIN, *encode("hi é")])
        assert (await tokenize(service).Decode(decode)).text == "<|begin|>hi é"
        decode.skip_special_tokens = True
        assert (await tokenize(service).Decode(decode)).text == "hi é"
        texts = ["a", "", "ccc"]
        encoded, error = await collect(
            tokenize(service).TokenizeStream(each_of(*(tei_pb2.EncodeRequest(inputs=each) for each in texts)))
        )
        assert error is None
        ids = [[token.id for token in each.tokens] for each in encoded]
        assert ids == [ids_of(each) for each in texts]
        decoded, error = await collect(
            tokenize(service).DecodeStream(each_of(*(tei_pb2.DecodeRequest(ids=each) for each in ids)))
        )
        assert error is None and [each.text for each in decoded] == texts


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
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert info.model_type == tei_pb2.MODEL_TYPE_RERANKER


async def test_labels_of_a_text(tmp_path):
    labels = {str(index): f"label {index}" for index in range(EMBEDDING_SIZE)}
    config = {"architectures": ["LlamaForSequenceClassification"], "vocab_size": 512, "id2label": labels}
    folder = write_checkpoint(tmp_path / "classifier", config_json=config)
    options = {"head_sizes": [0, EMBEDDING_SIZE]}
    async with run_service(folder, pool, tei=True, engine_options=options) as service:
        predict = tei_pb2_grpc.PredictStub(service.channel)
        answer = await predict.Predict(tei_pb2.PredictRequest(inputs="a"))
        logits = fake_vector([BEGIN, *encode("a")], Pooling(type=POOLING_TYPE_LAST))
        probs = activated(logits, "softmax")
        scores = [each.score for each in answer.predictions]
        assert scores == pytest.approx(sorted(probs, reverse=True), rel=1e-6)
        assert answer.predictions[0].label == f"label {probs.index(max(probs))}"
        assert answer.metadata.compute_tokens == 2 and answer.metadata.inference_time_ns > 0
        same = await predict.PredictPair(tei_pb2.PredictPairRequest(inputs=["a"]))
        assert same.predictions == answer.predictions
        plain = await predict.Predict(tei_pb2.PredictRequest(inputs="a", raw_scores=True))
        assert [each.score for each in plain.predictions] == sorted(logits, reverse=True)
        found, error = await collect(
            predict.PredictStream(each_of(*(tei_pb2.PredictRequest(inputs=each) for each in "ab")))
        )
        assert error is None and found[0].predictions == answer.predictions and len(found) == 2
        for request, field in (
            (tei_pb2.PredictPairRequest(inputs=["a", "b"]), "inputs"),
            (tei_pb2.PredictPairRequest(), "inputs"),
            (tei_pb2.PredictPairRequest(inputs=[""]), "inputs"),
        ):
            assert fields_of(await refusal(predict.PredictPair(request))) == [field]
        info = await tei_pb2_grpc.InfoStub(service.channel).Info(tei_pb2.InfoRequest())
        assert info.model_type == tei_pb2.MODEL_TYPE_CLASSIFIER


@pytest.mark.parametrize("labels", [1, EMBEDDING_SIZE])
async def test_labels_of_a_pair(tmp_path, labels, monkeypatch):
    """Of one label a score: an encoder that scores is a cross-encoder."""
    monkeypatch.setattr(fakes, "fake_vector", lambda ids, pooling: fake_vector(ids, pooling)[:labels])
    table = {str(index): f"label {index}" for index in range(labels)}
    config = {"architectures": ["BertForSequenceClassification"], "vocab_size": 512, "id2label": table}
    folder = write_checkpoint(tmp_path / "classifier", config_json=config)
    options = {"head_sizes": [0, labels]}
    async with run_service(folder, pool, tei=True, engine_options=options) as service:
        predict = tei_pb2_grpc.PredictStub(service.channel)
        pair = tei_pb2.PredictPairRequest(inputs=["a", "bb"])
        answer = await predict.PredictPair(pair)
        sent = service.engine.requests.get_nowait()
        ids = unpack_u32(sent.prompt_token_ids)
        assert sent.pooling.second_text == 1 and ids == encode("abb")
        logits = fake_vector(ids, Pooling(type=POOLING_TYPE_CLS))[:labels]
        expected = activated(logits, "sigmoid" if labels == 1 else "softmax")
        scores = [each.score for each in answer.predictions]
        assert scores == pytest.approx(sorted(expected, reverse=True), rel=1e-6)
        assert answer.predictions[0].label == f"label {expected.index(max(expected))}"
        assert answer.metadata.compute_chars == 3 and answer.metadata.compute_tokens == len(ids)
        found, error = await collect(predict.PredictPairStream(each_of(pair, pair)))
        assert error is None and [each.predictions for each in found] == [answer.predictions] * 2
        pair.raw_scores = True
        plain = await predict.PredictPair(pair)
        assert [each.score for each in plain.predictions] == sorted(logits, reverse=True)
        long = tei_pb2.PredictPairRequest(inputs=["a", "b" * MAX_MODEL_LEN])
        assert fields_of(await refusal(predict.PredictPair(long))) == ["inputs"]
        long.truncate = True
        assert (await predict.PredictPair(long)).metadata.compute_tokens == MAX_MODEL_LEN
        empty = tei_pb2.PredictPairRequest(inputs=["", "b"])
        assert fields_of(await refusal(predict.PredictPair(empty))) == ["inputs"]


async def test_vectors_of_tokens(checkpoint):
    """As the model has them: not normalized."""
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        answer = await embed(service).EmbedAll(tei_pb2.EmbedAllRequest(inputs="yé"))
        ids = [BEGIN, *encode("yé")]
        values = [value for each in answer.token_embeddings for value in each.embeddings]
        assert values == fake_vector(ids, Pooling(type=POOLING_TYPE_ALL))
        assert len(answer.token_embeddings) == answer.metadata.compute_tokens == len(ids)
        assert answer.metadata.compute_chars == 2
        messages = [tei_pb2.EmbedAllRequest(inputs=each) for each in ("a", "yé")]
        found, error = await collect(embed(service).EmbedAllStream(each_of(*messages)))
        assert error is None and len(found[0].token_embeddings) == 2
        assert found[1].token_embeddings == answer.token_embeddings
        long = tei_pb2.EmbedAllRequest(inputs="a" * MAX_MODEL_LEN)
        assert fields_of(await refusal(embed(service).EmbedAll(long))) == ["inputs"]
        long.truncate = True
        assert len((await embed(service).EmbedAll(long)).token_embeddings) == MAX_MODEL_LEN


async def test_texts_of_a_stream_are_ordered_by_relevance(checkpoint, tmp_path, monkeypatch):
    template = tmp_path / "pair.jinja"
    template.write_text("{{ query }}:{{ document }}")
    options = {"tei": True, "score_template": str(template), "score_tokens": "y,n"}

    def messages(**fields: Any) -> list[tei_pb2.RerankStreamRequest]:
        pairs = ("q", "a"), ("q", "bbb"), ("other", "")
        return [tei_pb2.RerankStreamRequest(query=query, text=text, **fields) for query, text in pairs]

    async with run_service(checkpoint, pool, **options) as service:
        rerank = tei_pb2_grpc.RerankStub(service.channel)
        raw = []
        for each in messages():
            asked = tei_pb2.RerankRequest(query=each.query, texts=[each.text], raw_scores=True)
            raw.append((await rerank.Rerank(asked)).ranks[0].score)
        answer = await rerank.RerankStream(each_of(*messages(raw_scores=True, return_text=True)))
        assert [(each.index, each.score) for each in answer.ranks] == sorted(
            enumerate(raw), key=lambda pair: -pair[1]
        )
        assert [each.text for each in answer.ranks] == [messages()[each.index].text for each in answer.ranks]
        assert answer.metadata.compute_chars == 11 and answer.metadata.inference_time_ns > 0
        plain = await rerank.RerankStream(each_of(*messages()))
        assert [each.index for each in plain.ranks] == [each.index for each in answer.ranks]
        sigmoids = [1 / (1 + math.exp(-each.score)) for each in answer.ranks]
        assert [each.score for each in plain.ranks] == pytest.approx(sigmoids)
        assert not plain.ranks[0].HasField("text")
        assert not (await rerank.RerankStream(each_of())).ranks
        wrong = [*messages(), tei_pb2.RerankStreamRequest(text="a")]
        assert fields_of(await refusal(rerank.RerankStream(each_of(*wrong)))) == ["query"]
        long = tei_pb2.RerankStreamRequest(query="q", text="x" * MAX_MODEL_LEN)
        assert fields_of(await refusal(rerank.RerankStream(each_of(long)))) == ["text"]
        for name in ("MAX_TEXTS", "MAX_RETURNED_CHARS"):
            monkeypatch.setattr(f"pagewire_gateways.tei.ranking.{name}", 2)
            error = await refusal(rerank.RerankStream(each_of(*messages(return_text=True))))
            assert fields_of(error) == ["text"]
            monkeypatch.undo()
        await until(lambda: service.frontend.parts.limits.num_calls == 0)


async def test_weights_of_the_vocabulary(checkpoint):
    options = {"pooling_type": "splade", "engine_options": {"head_sizes": [0, 0, EMBEDDING_SIZE]}}
    async with run_service(checkpoint, pool, tei=True, **options) as service:
        answer = await embed(service).EmbedSparse(tei_pb2.EmbedSparseRequest(inputs="yé"))
        ids = [BEGIN, *encode("yé")]
        weights = fake_vector(ids, Pooling(type=POOLING_TYPE_MAX))
        found = {each.index: each.value for each in answer.sparse_embeddings}
        assert found == {place: value for place, value in enumerate(weights) if value}
        assert answer.metadata.compute_tokens == len(ids)
        messages = [tei_pb2.EmbedSparseRequest(inputs=each) for each in ("a", "yé")]
        answers, error = await collect(embed(service).EmbedSparseStream(each_of(*messages)))
        assert error is None and answers[1].sparse_embeddings == answer.sparse_embeddings
        assert fields_of(await refusal(embed(service).Embed(text()))) == ["inputs"]
    async with run_service(checkpoint, pool, **EMBEDS) as service:
        refused = embed(service).EmbedSparse(tei_pb2.EmbedSparseRequest(inputs="a"))
        assert fields_of(await refusal(refused)) == ["inputs"]


def test_methods_are_for_callers_with_a_token_and_take_slots():
    for name in SERVICES:
        for method in tei_pb2.DESCRIPTOR.services_by_name[name].methods:
            path = f"/tei.v1.{name}/{method.name}"
            assert access_of(path) is Access.AUTHENTICATED
            if name != "Info":
                assert path in (_STREAMS if method.client_streaming else _CALLS)


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
