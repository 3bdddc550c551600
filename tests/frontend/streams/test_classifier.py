"""Classify: labels and probabilities of a checkpoint with a classifier."""

import json
import math
import shutil

import grpc
import pytest

from frontend.streams.classifier import activated
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_LAST, Pooling
from pagewire.v1 import model_pb2, pooling_pb2
from tests.frontend.fakes import EMBEDDING_SIZE, details_of, fake_vector, make_request, pool, run_service
from tests.frontend.test_resume import next_of

LOGITS = Pooling(type=POOLING_TYPE_LAST, head=2)
LABELS = [f"label {index}" for index in range(EMBEDDING_SIZE)]


@pytest.fixture
def classifier(checkpoint, tmp_path):
    """Returns a function that writes a checkpoint of a classifier and runs its service."""

    def run(script=pool, head_sizes=(0, EMBEDDING_SIZE), **fields):
        folder = tmp_path / "classifier"
        shutil.copytree(checkpoint, folder)
        table = {str(index): label for index, label in enumerate(LABELS)}
        config = {"architectures": ["LlamaForSequenceClassification"], "id2label": table, **fields}
        (folder / "config.json").write_text(json.dumps(config))
        return run_service(folder, script, engine_options={"head_sizes": list(head_sizes)})

    return run


def request_of(*inputs: list[int], **fields) -> pooling_pb2.ClassifyRequest:
    return pooling_pb2.ClassifyRequest(inputs=[{"token_ids": {"ids": ids}} for ids in inputs], **fields)


async def refused(rpc, request) -> tuple[grpc.StatusCode, list[str]]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await rpc(request)
    violations = details_of(caught.value)["BadRequest"].field_violations
    return caught.value.code(), [violation.field for violation in violations]


async def test_labels_and_probabilities_in_the_order_of_the_request(classifier):
    async with classifier() as service:
        response = await service.pooling.Classify(request_of([7, 8], [5], priority=-1, tenant="acme"))
        assert list(response.labels) == LABELS and response.usage.prompt_tokens == 3
        for ids, found in zip(([7, 8], [5]), response.results, strict=True):
            powers = [math.exp(x) for x in fake_vector(ids, LOGITS)]
            expected = [power / sum(powers) for power in powers]
            assert list(found.probabilities) == pytest.approx(expected, abs=1e-6)
        sent = await next_of(service.engine.requests)
        assert sent.pooling == LOGITS and (sent.priority, sent.tenant) == (-1, "acme")
        model = (await service.models.GetModel(model_pb2.GetModelRequest())).model
        assert list(model.capabilities) == [model_pb2.CAPABILITY_CLASSIFY]
        assert (await refused(service.generation.GenerateUnary, make_request()))[1] == ["model"]
        assert (await refused(service.pooling.Embed, pooling_pb2.EmbedRequest(inputs=[{"text": "a"}])))[
            1
        ] == ["model"]


async def test_a_reward_model_gives_its_numbers(classifier):
    async with classifier(problem_type="regression") as service:
        (found,) = (await service.pooling.Classify(request_of([7, 8, 9]))).results
        assert list(found.probabilities) == fake_vector([7, 8, 9], LOGITS)


async def test_what_is_refused(classifier, checkpoint):
    invalid = grpc.StatusCode.INVALID_ARGUMENT
    async with classifier() as service:
        classify = service.pooling.Classify
        assert await refused(classify, request_of()) == (invalid, ["inputs"])
        assert await refused(classify, request_of([7], [])) == (invalid, ["inputs[1].token_ids.ids"])
        assert await refused(classify, request_of(*[[7]] * 1025)) == (invalid, ["inputs"])
        assert (await refused(classify, request_of([7], tenant="\n")))[1] == ["tenant"]
    async with run_service(checkpoint, pool) as service:
        assert (await refused(service.pooling.Classify, request_of([7])))[1] == ["model"]


async def test_an_engine_without_the_classifier(classifier):
    async with classifier(head_sizes=()) as service:
        assert (await refused(service.pooling.Classify, request_of([7])))[1] == ["model"]


def test_activations():
    assert activated([3.0, -1.0], "none") == [3, -1]
    assert activated([0.0, 1000.0, -1000.0], "sigmoid") == [0.5, 1, 0]
    assert activated([1000.0, 1000.0], "softmax") == [0.5, 0.5]
