"""Score through gRPC and three processes, which are killed: what transformers computes of these prompts."""

import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from pagewire import Client
from pagewire.local_service import Service
from pagewire_client.results import DocumentScore
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.worker.pooling.test_heads import classifier

pytestmark = pytest.mark.usefixtures("patient")

TEMPLATE = "{{ bos_token }}A: {{ query }}\nB: {{ document }}\nIs B about A?{{ eos_token }}"
QUERY = "what do the two hundred and more tests of one feature show?"
DOCUMENTS = [
    "it is so",
    "",
    "all of them hold",
    "é\n\nè" * 9,
    "it is so",
    *(f"document {i}" for i in range(40)),
]
FLAGS = {"max_num_batched_tokens": 64, "num_blocks": 64, "block_size": 8, "max_deaths": 99}


def prompt(document: str) -> str:
    return f"<|begin|>A: {QUERY}\nB: {document}\nIs B about A?<|end|>"


def judged(folder: Path, score: Callable[[torch.Tensor], torch.Tensor]) -> list[float]:
    """Returns the probability of each of DOCUMENTS. score: of token ids [1, T], before the sigmoid."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    found = []
    for document in DOCUMENTS:
        ids = tokenizer(prompt(document), add_special_tokens=False, return_tensors="pt").input_ids
        with torch.inference_mode():
            found.append(float(torch.sigmoid(score(ids))))
    return found


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("templates") / "pair.jinja"
    path.write_text(TEMPLATE)
    return str(path)


def by_index(scores: list[DocumentScore]) -> list[float]:
    return [each.score for each in sorted(scores, key=lambda each: each.index)]


def check(service: Service, expected: list[float]) -> None:
    with Client(service.address) as client:
        scores = client.score(QUERY, DOCUMENTS)
        assert by_index(scores) == pytest.approx(expected, abs=1e-4)
        assert max(expected) - min(expected) > 1e-3
        assert [each.score for each in scores] == sorted(by_index(scores), reverse=True)
        alone = [client.score(QUERY, document)[0].score for document in DOCUMENTS[:5]]
        assert alone == by_index(scores)[:5], "the same bits in any batch"
        assert client.score(QUERY, DOCUMENTS, top_n=3) == scores[:3]
        assert client.score(QUERY, DOCUMENTS, cache_bypass=True) == scores, "and with nothing cached"


def test_the_logits_of_two_tokens(template: str, tmp_path: Path) -> None:
    folder = make_checkpoint("qwen3", tmp_path)
    tokenizer, model = (
        PreTrainedTokenizerFast.from_pretrained(folder),
        AutoModelForCausalLM.from_pretrained(folder),
    )
    yes, no = (tokenizer.convert_tokens_to_ids(token) for token in "yn")

    def score(ids: torch.Tensor) -> torch.Tensor:
        logits = model(ids).logits[0, -1].float()
        return logits[yes] - logits[no]

    flags = {"score_template": template, "score_tokens": "y,n", **FLAGS}
    with services.start(folder, dtype="float32", **flags) as service:
        check(service, judged(folder, score))


def test_the_classifier_of_one_label(template: str, tmp_path: Path) -> None:
    made, _ = classifier(make_checkpoint("gemma", tmp_path / "gemma"), tmp_path / "classifier", 1)
    model = AutoModelForSequenceClassification.from_pretrained(made)
    with services.start(made, dtype="float32", score_template=template, **FLAGS) as service:
        check(service, judged(made, lambda ids: model(ids).logits[0, 0]))


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, template: str) -> Iterator[Service]:
    """Pairs that have not begun when an engine dies wait for it as long as those that have."""
    folder = make_checkpoint("llama", tmp_path_factory.mktemp("llama"))
    waits = {"ready_timeout": 2 * services.PATIENCE_S, "resume_timeout": 2 * services.PATIENCE_S}
    flags = {"score_template": template, "score_tokens": "y,n", "frontends": 2, **FLAGS, **waits}
    with services.start(folder, dtype="float32", **flags) as service:
        yield service


@pytest.mark.parametrize("victim", ["worker", "engine"])
def test_the_same_scores_where_a_process_is_killed_meanwhile(service: Service, victim: str) -> None:
    with Client(service.address) as client, ThreadPoolExecutor(1) as pool:
        expected = client.score(QUERY, DOCUMENTS)
        call = pool.submit(client.score, QUERY, DOCUMENTS * 20)
        services.wait_until(lambda: services.rank_load(client).running_requests > 0)
        for pid in services.processes(service.pid).get(victim, []):
            os.kill(pid, signal.SIGKILL)
        assert by_index(call.result()) == by_index(expected) * 20
