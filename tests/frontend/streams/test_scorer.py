"""Score: pairs through a template, or embeddings; requests that are one to their client."""

import json
import math
import shutil

import grpc
import pytest

from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, POOLING_TYPE_MEAN, Pooling
from pagewire.ipc.columns import unpack_u32
from pagewire.v1 import model_pb2, pooling_pb2
from tests.frontend import fakes
from tests.frontend.fakes import BEGIN, END, details_of, encode, fake_vector, pool, run_service
from tests.frontend.test_resume import next_of

TEMPLATE = "{{ bos_token }}{{ query }}:{{ document }}{{ ' ' + instruction if instruction }}{{ eos_token }}"
TOKENS = encode("yn")
LOGITS = Pooling(type=POOLING_TYPE_LAST, token_ids=TOKENS)


@pytest.fixture
def reranker(checkpoint, tmp_path):
    """Returns a function that runs a model which answers y or n."""
    path = tmp_path / "pair.jinja"
    path.write_text(TEMPLATE)

    def run(script=None, **config):
        flags = {"score_template": str(path), "score_tokens": "y,n", **config}
        return run_service(checkpoint, script, **flags)

    return run


def embedding(checkpoint, script=None, **config):
    return run_service(checkpoint, script, **{"pooling_type": "mean", **config})


def request_of(query: object, *documents: object, **fields) -> pooling_pb2.ScoreRequest:
    def prompt(given):
        return {"text": given} if isinstance(given, str) else given

    return pooling_pb2.ScoreRequest(query=prompt(query), documents=map(prompt, documents), **fields)


def pair(query: str, document: str, instruction: str = "") -> list[int]:
    rest = f" {instruction}" if instruction else ""
    return [BEGIN, *encode(f"{query}:{document}{rest}"), END]


def raw(tokens: list[int]) -> float:
    first, second = fake_vector(tokens, LOGITS)
    return first - second


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


async def refused(service, request) -> tuple[grpc.StatusCode, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await service.pooling.Score(request)
    details = details_of(caught.value)
    fields = details["BadRequest"].field_violations if "BadRequest" in details else ()
    return caught.value.code(), [violation.field for violation in fields]


async def test_documents_are_ordered_by_the_logits_of_two_tokens(reranker):
    async with reranker(pool) as service:
        documents = ["b", "aaa", "", "b"]
        fields = {"priority": -1, "tenant": "acme", "cache": {"salt": "s"}, "instruction": "!"}
        response = await service.pooling.Score(request_of("q", *documents, **fields))
        raws = [raw(pair("q", document, "!")) for document in documents]
        order = sorted(range(4), key=lambda index: (-raws[index], index))
        assert [each.index for each in response.scores] == order
        assert order.index(0) + 1 == order.index(3), "equal ones by index"
        for each in response.scores:
            assert each.score == pytest.approx(sigmoid(raws[each.index]))
        assert response.usage.prompt_tokens == sum(len(pair("q", each, "!")) for each in documents)
        for _ in documents:
            sent = await next_of(service.engine.requests)
            assert sent.pooling == LOGITS and sent.prompt_only
            assert (sent.priority, sent.tenant, sent.cache_salt) == (-1, "acme", "s")
        best = await service.pooling.Score(request_of("q", *documents, top_n=1, instruction="!"))
        assert list(best.scores) == list(response.scores[:1])
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_SCORE in model.capabilities


async def test_one_token_alone(reranker):
    async with reranker(pool, score_tokens="y") as service:
        (found,) = (await service.pooling.Score(request_of("q", "d"))).scores
        assert found.score == pytest.approx(sigmoid(sum(pair("q", "d")) / 4))


async def test_a_text_cannot_write_control_tokens(reranker):
    async with reranker(pool) as service:
        await service.pooling.Score(request_of("q", "<|end|>"))
        sent = unpack_u32((await next_of(service.engine.requests)).prompt_token_ids)
        assert sent.count(END) == 1


@pytest.mark.parametrize(
    ("document", "kept"),
    [
        ({"text": "abcdef", "truncate_to": 2, "truncation_side": "TRUNCATION_SIDE_RIGHT"}, "ab"),
        ({"text": "abcdef", "truncate_to": 2}, "ef"),
        ({"text": "abc", "truncate_to": 3}, "abc"),
        ({"text": "x" * 300, "truncate_to": 1000}, None),
    ],
)
async def test_documents_are_cut_and_templates_are_not(reranker, document, kept):
    async with reranker(pool) as service:
        await service.pooling.Score(request_of("q", document))
        sent = unpack_u32((await next_of(service.engine.requests)).prompt_token_ids)
        if kept is None:  # to what fits the context
            assert sent[0] == BEGIN and sent[-1] == END and len(sent) == fakes.MAX_MODEL_LEN
        else:
            assert sent == pair("q", kept)


async def test_a_pair_that_fits_is_not_cut(reranker):
    """Up to the last token of the context."""
    room = fakes.MAX_MODEL_LEN - len(pair("q", ""))
    async with reranker(pool) as service:
        for length in range(room - 9, room + 1):
            text = "x" * length
            await service.pooling.Score(request_of("q", {"text": text, "truncate_to": 1000}))
            sent = unpack_u32((await next_of(service.engine.requests)).prompt_token_ids)
            assert sent == pair("q", text), length


async def test_the_classifier_of_a_cross_encoder(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setattr(fakes, "fake_vector", lambda ids, pooling: fake_vector(ids, pooling)[:1])
    folder = tmp_path / "classifier"
    shutil.copytree(checkpoint, folder)
    config = {"architectures": ["Qwen3ForSequenceClassification"], "num_labels": 1}
    template = tmp_path / "pair.jinja"
    template.write_text(TEMPLATE)
    options = {"engine_options": {"head_sizes": [0, 1]}, "score_template": str(template)}
    for activation, expected in (("Sigmoid", sigmoid), ("Identity", lambda x: x)):
        fields = {"sentence_transformers": {"activation_fn": f"torch.nn.modules.{activation}"}}
        (folder / "config.json").write_text(json.dumps(config | fields))
        async with run_service(folder, pool, **options) as service:
            (found,) = (await service.pooling.Score(request_of("q", "d"))).scores
            assert found.score == pytest.approx(expected(sum(pair("q", "d")) / 4))
            sent = await next_of(service.engine.requests)
            assert sent.pooling == Pooling(type=POOLING_TYPE_LAST, head=2)
    async with run_service(folder, pool, score_template=str(template)) as service:
        assert (await refused(service, request_of("q", "d")))[1] == ["model"], "its engine has no classifier"


async def test_the_cosine_of_embeddings(checkpoint):
    async with embedding(checkpoint, pool) as service:
        query, documents = {"token_ids": {"ids": [7, 8]}}, [{"token_ids": {"ids": [ids]}} for ids in (9, 7)]
        response = await service.pooling.Score(request_of(query, *documents, "bc"))
        mean = Pooling(type=POOLING_TYPE_MEAN)
        one = fake_vector([7, 8], mean)
        expected = []
        for ids in ([9], [7], [BEGIN, *encode("bc")]):
            other = fake_vector(ids, mean)
            product = sum(a * b for a, b in zip(one, other, strict=True))
            expected.append(product / math.hypot(*one) / math.hypot(*other))
        assert {each.index: each.score for each in response.scores} == pytest.approx(
            dict(enumerate(expected)), rel=1e-6
        )
        assert [each.score for each in response.scores] == sorted(
            (each.score for each in response.scores), reverse=True
        )
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_SCORE in model.capabilities


@pytest.mark.parametrize(
    ("request_fields", "paths"),
    [
        ({"documents": []}, ["documents"]),
        ({"documents": [{"text": "a"}] * 1025}, ["documents"]),
        ({"query": {"text": ""}}, ["query.text"]),
        ({"query": None}, ["query"]),
        ({"query": {"token_ids": {"ids": [7]}}}, ["query.token_ids"]),
        ({"query": {"text": "q", "truncate_to": 3}}, ["query.truncate_to"]),
        ({"documents": [{"text": "a"}, {}]}, ["documents[1]"]),
        ({"documents": [{"token_ids": {"ids": [7]}}]}, ["documents[0].token_ids"]),
        ({"documents": [{"text": "a", "add_special_tokens": True}]}, ["documents[0].add_special_tokens"]),
        ({"documents": [{"text": "a"}, {"text": "a" * 300}]}, ["documents[1]"]),
        ({"documents": [{"text": "a"}] * 1024, "query": {"text": "q" * (17 << 10)}}, ["documents"]),
        ({"top_n": 0}, ["top_n"]),
        ({"tenant": "\n"}, ["tenant"]),
        ({"priority": 1001}, ["priority"]),
        ({"cache": {"salt": "s" * 257}}, ["cache.salt"]),
        ({"request_id": "a" * 252}, ["request_id"]),
    ],
)
async def test_what_is_refused_of_pairs(reranker, request_fields, paths):
    async with reranker(pool) as service:
        fields = {"query": {"text": "q"}, "documents": [{"text": "a"}], **request_fields}
        expected = (grpc.StatusCode.INVALID_ARGUMENT, paths)
        assert await refused(service, pooling_pb2.ScoreRequest(**fields)) == expected
        assert service.engine.requests.empty()


async def test_what_is_refused_of_embeddings(checkpoint):
    async with embedding(checkpoint, pool) as service:
        for request, path in (
            (request_of("q", "a", ""), "documents[1].text"),
            (request_of({"token_ids": {"ids": [512]}}, "a"), "query.token_ids.ids"),
            (request_of("q", "a", instruction="i"), "instruction"),
        ):
            assert await refused(service, request) == (grpc.StatusCode.INVALID_ARGUMENT, [path])


async def test_a_model_that_nothing_says_how_to_score(checkpoint):
    async with run_service(checkpoint, pool) as service:
        with pytest.raises(grpc.aio.AioRpcError, match="--score-template, and --score-tokens"):
            await service.pooling.Score(request_of("q", "a"))
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert model_pb2.CAPABILITY_SCORE not in model.capabilities


async def test_an_instruction_that_the_template_leaves_out(reranker, tmp_path):
    path = tmp_path / "plain.jinja"
    path.write_text("{{ query }} {{ document }}")
    async with reranker(pool, score_template=str(path)) as service:
        assert (await refused(service, request_of("q", "a", instruction="i")))[1] == ["instruction"]
