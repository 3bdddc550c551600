"""POST /rerank and /score, in the forms of Cohere, Jina, TEI and vLLM."""

import asyncio
import math

import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from pagewire.ipc.columns import unpack_u32
from pagewire.v1.generation_pb2 import AbortRequest
from pagewire_openai import scoring
from tests.frontend.fakes import MAX_MODEL_LEN, encode, fake_vector, pool
from tests.patience import soon

LOGITS = Pooling(type=POOLING_TYPE_LAST, token_ids=encode("yn"))
DOCUMENTS = ["a", "bbb", ""]


@pytest.fixture
def reranker(run_api, tmp_path):
    """Returns a function that runs the API of a model which answers y or n."""
    path = tmp_path / "pair.jinja"
    path.write_text("{{ query }}:{{ document }}{{ instruction }}")
    return lambda **options: run_api(pool, score_template=str(path), score_tokens="y,n", **options)


def raw(text: str) -> float:
    yes, no = fake_vector(encode(text), LOGITS)
    return yes - no


def score(text: str) -> float:
    return 1 / (1 + math.exp(-raw(text)))


ORDER = sorted(range(3), key=lambda index: -raw(f"q:{DOCUMENTS[index]}"))


@pytest.mark.parametrize(
    ("path", "fields", "texts"),
    [
        ("/v1/rerank", {}, True),
        ("/v1/rerank", {"return_documents": False}, False),
        ("/v2/rerank", {}, False),
        ("/v2/rerank", {"return_documents": True}, True),
        ("/rerank", {}, True),
    ],
)
async def test_cohere_jina_and_vllm(reranker, path, fields, texts):
    async with reranker() as api:
        documents = ["a", {"text": "bbb"}, ""]
        body = {"model": "fake", "query": "q", "documents": documents, "priority": 3, "cache_salt": "s"}
        answer = (await api.post(path, **body, **fields)).json()
        assert [each["index"] for each in answer["results"]] == ORDER
        for each in answer["results"]:
            text = DOCUMENTS[each["index"]]
            assert each["relevance_score"] == score(f"q:{text}")
            assert each.get("document") == ({"text": text} if texts else None)
        tokens = sum(len(encode(f"q:{text}")) for text in DOCUMENTS)
        assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
        assert answer["model"] == "fake" and answer["id"] and answer["meta"]
        sent = api.service.engine.requests.get_nowait()
        assert (sent.priority, sent.cache_salt, sent.pooling) == (3, "s", LOGITS)
        best = (await api.post(path, **body, top_n=1)).json()
        assert [each["index"] for each in best["results"]] == ORDER[:1]


COHERE = [
    ("/v2/rerank", '{"model":"fake","query":"q","documents":["a","bbb"]}', [1, 0]),
    (
        "/v2/rerank",
        '{"model":"fake","query":"q","documents":["a","bbb"],"top_n":1,"max_tokens_per_doc":4,"priority":1}',
        [1],
    ),
    ("/v1/rerank", '{"query":"q","documents":["a",{"text":"bbb"}],"top_n":1,"return_documents":true}', [1]),
]
"""What cohere 7.3.1 sends, recorded."""


@pytest.mark.parametrize(("path", "body", "expected"), COHERE)
async def test_bodies_of_the_client_of_cohere(reranker, path, body, expected):
    async with reranker() as api:
        answer = await api.http.post(path, content=body, headers={"content-type": "application/json"})
        assert [each["index"] for each in answer.json()["results"]] == expected


async def test_documents_are_cut(reranker):
    async with reranker() as api:
        body = {"query": "q", "documents": ["abcdef"], "max_tokens_per_doc": 2, "instruction": "!"}
        assert (await api.post("/v1/rerank", **body)).status_code == 200
        sent = api.service.engine.requests.get_nowait()
        assert unpack_u32(sent.prompt_token_ids) == encode("q:ab!")


async def test_tei(reranker):
    async with reranker() as api:
        body = {"query": "q", "texts": DOCUMENTS, "return_text": True}
        answer = (await api.post("/rerank", **body)).json()
        expected = [(index, DOCUMENTS[index]) for index in ORDER]
        assert [(each["index"], each["text"]) for each in answer] == expected
        assert [each["score"] for each in answer] == [score(f"q:{text}") for _, text in expected]
        answer = (await api.post("/rerank", query="q", texts=DOCUMENTS, raw_scores=True)).json()
        assert answer == [{"index": index, "score": raw(f"q:{text}")} for index, text in expected]
        cut = {"texts": ["x" * 2 * MAX_MODEL_LEN + "yz"], "truncate": True, "truncation_direction": "Left"}
        assert (await api.post("/rerank", query="q", **cut)).status_code == 200


@pytest.mark.parametrize("names", [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "items")])
@pytest.mark.parametrize(
    ("first", "second", "pairs"),
    [
        ("q", "a", ["q:a"]),
        ("q", ["a", "bb"], ["q:a", "q:bb"]),
        (["q"], ["a", "bb"], ["q:a", "q:bb"]),
        (["q", "r"], ["a", "bb"], ["q:a", "r:bb"]),
    ],
)
async def test_pairs_of_vllm(reranker, names, first, second, pairs):
    async with reranker() as api:
        for path in ("/v1/score", "/score"):
            answer = (await api.post(path, model="fake", **{names[0]: first, names[1]: second})).json()
            assert answer["object"] == "list" and answer["model"] == "fake" and answer["created"]
            assert answer["data"] == [
                {"index": index, "object": "score", "score": score(text)} for index, text in enumerate(pairs)
            ]
            assert answer["usage"]["prompt_tokens"] == sum(len(encode(text)) for text in pairs)


ONE = {"query": "q", "documents": ["a"]}
TEI = {"query": "q", "texts": ["a"]}
PAIR = {"text_1": "q", "text_2": "a"}
WRONG = [
    ("/v1/rerank", {"documents": ["a"]}, "query"),
    ("/v1/rerank", {**ONE, "query": 5}, "query"),
    ("/v1/rerank", {"query": "q"}, "documents"),
    ("/v1/rerank", {**ONE, "documents": "a"}, "documents"),
    ("/v1/rerank", {**ONE, "documents": []}, "documents"),
    ("/v1/rerank", {**ONE, "documents": ["a"] * 1025}, "documents"),
    ("/v1/rerank", {**ONE, "documents": ["a", 5]}, "documents[1]"),
    ("/v1/rerank", {**ONE, "documents": ["a", {"text": 5}]}, "documents[1].text"),
    ("/v1/rerank", {**ONE, "documents": ["a", {"title": "x"}]}, "documents[1].title"),
    ("/v1/rerank", {**ONE, "documents": ["a", {}]}, "documents[1].text"),
    ("/v1/rerank", {**ONE, "documents": ["a", "x" * 300]}, "documents[1]"),
    ("/v1/rerank", {**ONE, "max_tokens_per_doc": 0}, "max_tokens_per_doc"),
    ("/v1/rerank", {**ONE, "top_n": "x"}, "top_n"),
    ("/v1/rerank", {**ONE, "top_n": 0}, "top_n"),
    ("/v1/rerank", {**ONE, "priority": 5000}, "priority"),
    ("/v2/rerank", {**ONE, "rank_fields": ["text"]}, "rank_fields"),
    ("/v2/rerank", {**ONE, "return_documents": 1}, "return_documents"),
    ("/rerank", {"texts": ["a"]}, "query"),
    ("/rerank", {**TEI, "texts": "a"}, "texts"),
    ("/rerank", {**TEI, "texts": []}, "texts"),
    ("/rerank", {**TEI, "texts": ["a", "x" * 300]}, "texts[1]"),
    ("/rerank", {**TEI, "documents": ["a"]}, "documents"),
    ("/rerank", {**TEI, "truncation_direction": "up"}, "truncation_direction"),
    ("/v1/score", {"text_2": "a"}, "text_1"),
    ("/v1/score", {"text_1": "q"}, "text_2"),
    ("/v1/score", {**PAIR, "text_2": []}, "text_2"),
    ("/v1/score", {**PAIR, "text_1": ["q", 5]}, "text_1"),
    ("/v1/score", {**PAIR, "text_1": ["q", "r", "s"]}, "text_1"),
    ("/v1/score", {**PAIR, "queries": "q"}, "queries"),
    ("/v1/score", {"text_1": ["q", "r"], "text_2": ["a", "x" * 300]}, "text_2[1]"),
    ("/v1/score", {"text_1": ["q", ""], "text_2": ["a", "b"]}, "text_1[1]"),
    ("/v1/score", {**PAIR, "priority": 5000}, "priority"),
]


async def test_what_is_refused_by_name(reranker):
    async with reranker() as api:
        for path, body, param in WRONG:
            answer = await api.post(path, **body)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == param, (path, body, error)


async def test_fields_that_all_pairs_have_are_counted_for_each(reranker):
    """A long instruction would be copied as often as there are queries."""
    async with reranker(max_request_bytes=1 << 20) as api:
        body = {"text_1": ["q"] * 5, "text_2": ["a"] * 5, "instruction": "x" * 300_000}
        answer = await api.post("/v1/score", **body)
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "text_1"


async def test_a_model_that_does_not_score(run_api):
    async with run_api(pool) as api:
        for path, body in (("/v1/rerank", ONE), ("/rerank", TEI), ("/v1/score", PAIR)):
            answer = await api.post(path, **body)
            assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"


@pytest.mark.parametrize("at_once", [1, 64])
async def test_an_abort_ends_all_pairs(reranker, monkeypatch, at_once):
    """Those that have begun and those that have not."""
    monkeypatch.setattr(scoring, "AT_ONCE", at_once)
    async with reranker() as api:
        engine, body = api.service.engine, {"text_1": ["q", "r", "s"], "text_2": ["a", "b", "c"]}
        engine.script = None
        call = asyncio.ensure_future(api.http.post("/v1/score", json=body, headers={"x-request-id": "mine"}))
        sent = [await soon(engine.requests.get()) for _ in range(min(at_once, 3))]
        assert {each.group for each in sent} == {"mine"}, "a core finds all of it for another frontend"
        response = await api.service.generation.Abort(AbortRequest(request_ids=["mine", "other"]))
        assert list(response.aborted_request_ids) == ["mine"]
        assert (await call).status_code == 409 and engine.requests.empty()
