"""tei.v1.Rerank: texts by relevance, in one message and in a stream."""

import math
from typing import Any

import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from tei_calls import each_of, fields_of, refusal
from tests.frontend.fakes import MAX_MODEL_LEN, encode, fake_vector, pool, run_service, until


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
