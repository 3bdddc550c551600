"""tei.v1.Predict: labels of texts and of pairs."""

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from frontend.streams.classifier import activated
from pagewire.internal.v1.engine_pb2 import POOLING_TYPE_CLS, POOLING_TYPE_LAST, Pooling
from pagewire.ipc.columns import unpack_u32
from pagewire_gateways.protos import tei_pb2, tei_pb2_grpc
from tei_calls import collect, each_of, fields_of, refusal
from tests.frontend import fakes
from tests.frontend.fakes import (
    BEGIN,
    EMBEDDING_SIZE,
    MAX_MODEL_LEN,
    Service,
    encode,
    fake_vector,
    pool,
    run_service,
    write_checkpoint,
)


def run_classifier(folder: Path, architecture: str, labels: int) -> AbstractAsyncContextManager[Service]:
    """A service whose checkpoint has so many labels."""
    names = {str(index): f"label {index}" for index in range(labels)}
    config = {"architectures": [architecture], "vocab_size": 512, "id2label": names}
    write_checkpoint(folder / "classifier", config_json=config)
    options = {"head_sizes": [0, labels]}
    return run_service(folder / "classifier", pool, tei=True, engine_options=options)


async def test_labels_of_a_text(tmp_path):
    async with run_classifier(tmp_path, "LlamaForSequenceClassification", EMBEDDING_SIZE) as service:
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
    async with run_classifier(tmp_path, "BertForSequenceClassification", labels) as service:
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
