"""An encoder through a whole service: vectors of texts, and what it refuses."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from pagewire import LLM, Client
from pagewire.local_service import Service
from pagewire.v1 import model_pb2
from pagewire_client.errors import InvalidArgument
from tests.checkpoints import make_checkpoint, make_wordpiece
from tests.e2e import services

pytestmark = pytest.mark.usefixtures("patient")

TEXTS = ["Hello", "the quick brown fox", "a naïve café " * 3, "z" * 90]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As sentence-transformers writes it."""
    made = make_checkpoint("bert", tmp_path_factory.mktemp("bert"), max_position_embeddings=128)
    make_wordpiece(320).save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text("{}")
    kinds = (("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize"))
    modules = [{"path": path, "type": f"sentence_transformers.models.{kind}"} for path, kind in kinds]
    (made / "modules.json").write_text(json.dumps(modules))
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    return made


@pytest.fixture(scope="module")
def service(folder: Path) -> Iterator[Service]:
    """Steps have room for one long text, or a few short ones."""
    flags = {"max_num_batched_tokens": 100, "num_blocks": 24, "max_deaths": 99}
    with services.start(folder, dtype="float32", **flags) as service:
        yield service


@torch.inference_mode()
def expected(folder: Path, text: str) -> list[float]:
    """Its mean by transformers, of length 1."""
    ids = make_wordpiece(320).encode(text).ids
    assert (ids[0], ids[-1]) == (2, 3)
    states = AutoModel.from_pretrained(folder)(torch.tensor([ids])).last_hidden_state[0]
    vector: list[float] = torch.nn.functional.normalize(states.mean(0), dim=0).tolist()
    return vector


def test_vectors_are_those_of_transformers_and_the_same_in_any_company(service: Service, folder: Path):
    with Client(service.address) as client:
        alone = [client.embed([text])[0] for text in TEXTS]
        tokens = [client.embed_tokens([text])[0] for text in TEXTS]
        assert client.embed(TEXTS * 20) == alone * 20 and client.embed_tokens(TEXTS * 20) == tokens * 20
        (pid,) = services.processes(service.pid)["worker"]
        os.kill(pid, signal.SIGKILL)
        assert client.embed_tokens(TEXTS) == tokens and client.embed(TEXTS) == alone
    for text, vector, found in zip(TEXTS, alone, tokens, strict=True):
        assert vector == pytest.approx(expected(folder, text), abs=1e-5)
        assert found.token_ids == make_wordpiece(320).encode(text).ids
        lengths = [sum(x * x for x in each) for each in found.vectors]
        assert lengths == pytest.approx([1.0] * len(found.token_ids)) and len(found.vectors[0]) == len(vector)


def test_what_is_refused(service: Service):
    with Client(service.address) as client:
        assert list(client.model().capabilities)[:1] == [model_pb2.CAPABILITY_EMBED]
        assert client.model().max_model_len == 100  # what a step may have
        with pytest.raises(InvalidArgument, match="does not generate: it is an encoder"):
            client.generate("Hello")
        with pytest.raises(InvalidArgument, match=r"inputs\[1\].* 101 tokens"):
            client.embed(["z", [5] * 101])
        assert client.embed(["z" * 98]) == client.embed(["z" * 99]), "a text is cut, as config.json says"
        assert len(client.embed([[5] * 100])[0]) == 48


def test_sparse_vectors_are_those_of_transformers_and_the_same_in_any_company(tmp_path: Path):
    """Of a checkpoint that predicts masked tokens, through the death of a worker."""
    torch.manual_seed(3)
    base = make_checkpoint("bert", tmp_path / "base", max_position_embeddings=128)
    model = AutoModelForMaskedLM.from_pretrained(base).eval()
    torch.nn.init.normal_(model.cls.predictions.bias, std=0.3)
    model.save_pretrained(tmp_path / "made")
    make_wordpiece(320).save(str(tmp_path / "made" / "tokenizer.json"))
    (tmp_path / "made" / "tokenizer_config.json").write_text("{}")
    flags = {"pooling_type": "splade", "dtype": "float32", "num_blocks": 24, "max_deaths": 99}
    with LLM(str(tmp_path / "made"), **flags) as llm, Client(llm.address) as client:
        alone = [client.embed_sparse(text)[0] for text in TEXTS]
        assert llm.embed_sparse(TEXTS * 20, progress=False) == alone * 20
        (pid,) = services.processes(llm._service.pid)["worker"]
        os.kill(pid, signal.SIGKILL)
        assert llm.embed_sparse(TEXTS, progress=False) == alone
        with pytest.raises(InvalidArgument, match="sparse vectors alone"):
            client.embed(TEXTS)
    for text, found in zip(TEXTS, alone, strict=True):
        with torch.inference_mode():
            logits = model(torch.tensor([make_wordpiece(320).encode(text).ids])).logits[0]
        weights = torch.log1p(torch.relu(logits)).amax(0).tolist()
        assert [found.get(token, 0.0) for token in range(len(weights))] == pytest.approx(weights, abs=1e-5)
        assert 0 < len(found) < len(weights)


QUERY = "what is a fox"
DOCUMENTS = ["a quick brown animal", "", "zebras and naïve cafés " * 2, "fox"]


@pytest.fixture(scope="module")
def reranker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of one label, large enough that its scores differ."""
    base = make_checkpoint("bert", tmp_path_factory.mktemp("base"), max_position_embeddings=128)
    made = tmp_path_factory.mktemp("reranker")
    torch.manual_seed(3)
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=1)
    for module in (model.bert.pooler.dense, model.classifier):
        torch.nn.init.normal_(module.weight, std=0.3)
    model.save_pretrained(made)
    make_wordpiece(320).save(str(made / "tokenizer.json"))
    (made / "tokenizer_config.json").write_text("{}")
    return made


def test_scores_of_pairs_are_those_of_transformers(reranker: Path):
    """The document's tokens have the type 1; scores have the same bits among others."""
    model = AutoModelForSequenceClassification.from_pretrained(reranker).eval()
    expected = []
    for document in DOCUMENTS:
        pair = make_wordpiece(320).encode(QUERY, document)
        with torch.inference_mode():
            types = torch.tensor([pair.type_ids])
            expected.append(float(model(torch.tensor([pair.ids]), token_type_ids=types).logits.sigmoid()))
    started = services.start(reranker, dtype="float32", num_blocks=24)
    with started as service, Client(service.address) as client:
        found = {each.index: each.score for each in client.score(QUERY, DOCUMENTS * 9)}
        alone = [client.score(QUERY, [document])[0].score for document in DOCUMENTS]
        assert client.classify([DOCUMENTS[0]]).labels == ["LABEL_0"]
    assert [found[index] for index in range(9 * len(DOCUMENTS))] == alone * 9
    assert alone == pytest.approx(expected, abs=1e-6) and max(alone) - min(alone) > 1e-3
