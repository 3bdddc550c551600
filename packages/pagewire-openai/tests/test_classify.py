"""POST /classify."""

import pytest

from frontend.streams.classifier import activated
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from tests.frontend.fakes import BEGIN, EMBEDDING_SIZE, encode, fake_vector, pool, write_checkpoint

FLAGS = {"engine_options": {"head_sizes": [0, EMBEDDING_SIZE]}}
LABELS = [f"label {index}" for index in range(EMBEDDING_SIZE)]


@pytest.fixture(scope="module")
def classifier(tmp_path_factory):
    """A model of eight labels."""
    config = {
        "architectures": ["LlamaForSequenceClassification"],
        "vocab_size": 512,
        "id2label": {str(index): label for index, label in enumerate(LABELS)},
    }
    return write_checkpoint(tmp_path_factory.mktemp("classifier"), config_json=config)


async def test_inputs_are_labelled(run_api, classifier):
    async with run_api(pool, model_path=classifier, **FLAGS) as api:
        body = {"model": "fake", "input": ["a", "bc"], "priority": 3, "cache_salt": "s"}
        answer = (await api.post("/classify", **body)).json()
        assert answer["object"] == "list" and answer["model"] == "fake" and answer["id"]
        for index, (text, found) in enumerate(zip(["a", "bc"], answer["data"], strict=True)):
            logits = fake_vector([BEGIN, *encode(text)], Pooling(type=POOLING_TYPE_LAST))
            probs = activated(logits, "softmax")
            best = LABELS[probs.index(max(probs))]
            assert found == {"index": index, "label": best, "probs": probs, "num_classes": EMBEDDING_SIZE}
        assert answer["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        sent = api.service.engine.requests.get_nowait()
        assert (sent.priority, sent.cache_salt) == (3, "s")


WRONG = [
    ({}, "input"),
    ({"input": ["a", ""]}, "input[1]"),
    ({"input": ["a"] * 1025}, "input"),
    ({"input": "a" * 300}, "input"),
    ({"input": "a", "priority": 5000}, "priority"),
    ({"input": "a", "activation": True}, "activation"),
]


async def test_what_is_refused_by_name(run_api, classifier):
    async with run_api(pool, model_path=classifier, **FLAGS) as api:
        for body, param in WRONG:
            answer = await api.post("/classify", **body)
            error = answer.json()["error"]
            assert answer.status_code == 400 and error["param"] == param, (body, error)
        assert api.service.engine.requests.empty()


async def test_a_model_that_does_not_classify(run_api):
    async with run_api(pool) as api:
        answer = await api.post("/classify", input="a")
        assert answer.status_code == 400 and answer.json()["error"]["param"] == "model"
