"""lm-evaluation-harness through the OpenAI API: its log-likelihoods are those of the model, computed by
transformers.

The harness itself is run where it is installed in an environment of its own (docs/testing.md); its requests
are sent in any case.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
import transformers

from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.local_service import Service
from tests.e2e import services
from tests.patience import PATIENCE_S

HARNESS = os.environ.get("LM_EVAL") or shutil.which("lm_eval")
FOLDER = checkpoint_folder("demo")
DOCUMENTS = [
    {"question": "What is the capital of Japan?", "choices": [" Tokyo", " Paris", " a dog"], "answer": 0},
    {"question": "What is the capital of France?", "choices": [" Tokyo", " Paris"], "answer": 1},
    {"question": "Once upon a time", "choices": [" there was a mouse", " zz", "<|end|>"], "answer": 0},
]
TASKS = {
    "choices": {
        "output_type": "multiple_choice",
        "doc_to_target": "answer",
        "doc_to_choice": "choices",
        "target_delimiter": "",
        "metric_list": [{"metric": "acc"}],
    },
    "texts": {
        "output_type": "generate_until",
        "doc_to_target": "{{choices[answer]}}",
        "generation_kwargs": {"until": ["\n", "."], "max_gen_toks": 24, "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
    },
    "windows": {
        "output_type": "loglikelihood_rolling",
        "doc_to_text": "",
        "doc_to_target": "{{question}}{{choices[answer]}}",
        "metric_list": [
            {"metric": "bits_per_byte", "aggregation": "bits_per_byte", "higher_is_better": False}
        ],
    },
}
NEAR = {"rel": 1e-5, "abs": 2e-4}


@pytest.fixture(scope="module")
def service() -> Iterator[Service]:
    with services.start(openai_port=0, dtype="float32") as service:
        yield service


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def model() -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32)


def loglikelihood(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """Returns what the model gives a continuation, and whether it is the most probable one."""
    with torch.no_grad():
        logits = model(torch.tensor([context + continuation])).logits[0, len(context) - 1 : -1]
    chosen = torch.tensor(continuation)
    scores = logits.log_softmax(-1).gather(1, chosen[:, None]).sum()
    return float(scores), bool((logits.argmax(-1) == chosen).all())


def score(service: Service, pairs: list[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
    """Asks and reads as the harness does: the prompts' tokens, and one more that is not counted."""
    body = {"model": "demo", "prompt": [context + continuation for context, continuation in pairs]}
    fields = {"temperature": 0, "max_tokens": 1, "logprobs": 1, "seed": 1234, "echo": True}
    answer = httpx2.post(f"{service.facts['openai']}/completions", json=body | fields, timeout=PATIENCE_S)
    choices = sorted(answer.json()["choices"], key=lambda choice: choice["index"])
    found = []
    for (context, _), choice in zip(pairs, choices, strict=True):
        scores = choice["logprobs"]["token_logprobs"][len(context) : -1]
        tops = choice["logprobs"]["top_logprobs"][len(context) : -1]
        greedy = all(each == max(top.values()) for each, top in zip(scores, tops, strict=True))
        found.append((sum(scores), greedy))
    return found


def test_loglikelihoods_are_those_of_the_model(service: Service, tokenizer: Any, model: Any) -> None:
    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    pairs = [
        (ids(each["question"]), ids(choice)) for each in DOCUMENTS for choice in each["choices"]
    ]  # one of them is the end of a text
    answered = model.generate(torch.tensor([ids("Once upon a time")]), max_new_tokens=8, do_sample=False)
    pairs.append((ids("Once upon a time"), answered[0, len(ids("Once upon a time")) :].tolist()))
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "Hello!"}], add_generation_prompt=True)
    asked = chat["input_ids"]
    ended = model.generate(torch.tensor([asked]), max_new_tokens=40, do_sample=False)[0].tolist()
    assert ended[-1] == tokenizer.eos_token_id
    pairs.append((asked, ended[len(asked) : -1]))  # behind it the most probable token is the end
    pairs.append(([1], (ids(DOCUMENTS[2]["question"]) * 400)[:1022]))  # all of the context but one token
    expected = [loglikelihood(model, *pair) for pair in pairs]
    for found in (score(service, pairs), *zip(*(score(service, [pair]) for pair in pairs), strict=True)):
        assert [score for score, _ in found] == pytest.approx([score for score, _ in expected], **NEAR)
        assert [greedy for _, greedy in found] == [greedy for _, greedy in expected]
    assert expected[-3][1] and expected[-2][1]


def run(folder: Path, kind: str, arguments: dict[str, Any], *options: str) -> dict[str, list[Any]]:
    """Runs the tasks, and returns the responses to each task's requests, in the order of DOCUMENTS."""
    (folder / "documents.jsonl").write_text("".join(json.dumps(each) + "\n" for each in DOCUMENTS))
    for name, task in TASKS.items():
        common = {"task": name, "dataset_path": "json", "test_split": "test", "doc_to_text": "{{question}}"}
        common["dataset_kwargs"] = {"data_files": {"test": str(folder / "documents.jsonl")}}
        (folder / f"{name}.yaml").write_text(json.dumps(common | task))  # JSON is YAML
    given = ",".join(f"{name}={value}" for name, value in arguments.items())
    command = [HARNESS or "", "--model", kind, "--model_args", given, "--include_path", str(folder)]
    command += ["--output_path", str(folder / "out"), "--log_samples", *options]
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "cache"), "OPENAI_API_KEY": "none"}
    done = subprocess.run(
        command, cwd=folder, env=os.environ | offline, capture_output=True, text=True, timeout=1000
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = {}
    for path in (folder / "out").glob("*/samples_*.jsonl"):
        samples = sorted(map(json.loads, path.read_text().splitlines()), key=lambda each: each["doc_id"])
        name = next(name for name in TASKS if path.name.startswith(f"samples_{name}_"))
        found[name] = [each["resps"] for each in samples]
    return found


needs_harness = pytest.mark.skipif(
    HARNESS is None, reason="lm-evaluation-harness is not installed (760 MB): see docs/testing.md"
)


@needs_harness
@pytest.mark.timeout(1200)  # of its imports, where other work takes the cores
@pytest.mark.parametrize("concurrent", [False, True])
def test_the_harness_on_completions(
    service: Service, tokenizer: Any, model: Any, tmp_path: Path, concurrent: bool
) -> None:
    url = f"{service.facts['openai']}/completions"
    arguments = {"model": "demo", "base_url": url, "tokenizer": FOLDER, "max_length": 1024}
    options = ("--tasks", ",".join(TASKS), *(("--batch_size", "2") if concurrent else ()))
    found = run(tmp_path, "local-completions", arguments | {"num_concurrent": 1 + 2 * concurrent}, *options)

    def ids(text: str) -> list[int]:
        return tokenizer(text, add_special_tokens=False)["input_ids"]

    expected = []
    for each in DOCUMENTS:
        for choice in each["choices"]:
            whole, context = ids(each["question"] + choice), ids(each["question"])
            expected.append(loglikelihood(model, context, whole[len(context) :]))
    answers = [(float(score), greedy == "True") for ((score, greedy),) in chain(*found["choices"])]
    assert [score for score, _ in answers] == pytest.approx([score for score, _ in expected], **NEAR)
    assert [greedy for _, greedy in answers] == [greedy for _, greedy in expected]
    for each, ((text,),) in zip(DOCUMENTS, found["texts"], strict=True):
        prompt = torch.tensor([ids(each["question"])])
        written = model.generate(prompt, max_new_tokens=24, do_sample=False)[0, prompt.shape[1] :]
        whole = tokenizer.decode(written, skip_special_tokens=True)
        assert text == whole.split("\n")[0].split(".")[0]
    for each, ((score,),) in zip(DOCUMENTS, found["windows"], strict=True):
        text = ids(each["question"] + each["choices"][each["answer"]])
        wanted = loglikelihood(model, [tokenizer.bos_token_id], text)[0]
        assert float(score) == pytest.approx(wanted, **NEAR)


@needs_harness
@pytest.mark.timeout(1200)
def test_the_harness_on_chats(service: Service, tmp_path: Path) -> None:
    arguments = {"model": "demo", "base_url": f"{service.facts['openai']}/chat/completions"}
    options = ("--tasks", "texts", "--apply_chat_template")
    found = run(tmp_path, "local-chat-completions", arguments, *options)
    texts = [text for ((text,),) in found["texts"]]
    assert [city in text for city, text in zip(("Tokyo", "Paris"), texts, strict=False)] == [True, True]
