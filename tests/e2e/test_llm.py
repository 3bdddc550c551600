"""pagewire.LLM: a model as a Python object."""

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from pagewire import LLM, Client, SamplingParams
from pagewire.llm import _parts
from pagewire.v1 import prompt_pb2
from pagewire_client.errors import InvalidArgument, Unavailable
from pagewire_client.results import Generation
from tests.checkpoints import make_checkpoint
from tests.e2e import services
from tests.worker.pooling.test_heads import classifier

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", max_num_seqs=4, pooling_type="last") as llm:
        yield llm


def test_results_come_in_the_order_of_the_prompts(llm: LLM, capsys: pytest.CaptureFixture[str]):
    """40 prompts, of which 4 run and 8 are in flight at a time, with lengths that end out of order."""
    params = [
        SamplingParams(temperature=0, max_tokens=1 + number % 13, ignore_eos=True) for number in range(40)
    ]
    results = llm.generate([f"{number}, {number + 1}," for number in range(40)], params)
    assert [len(result.token_ids) for result in results] == [1 + number % 13 for number in range(40)]
    single = llm.generate("7, 8,", params[7], progress=False)[0]
    assert results[7].token_ids == single.token_ids
    shown = capsys.readouterr().err
    assert "40/40" in shown and re.search(r"input \d+ tok/s, output \d+ tok/s", shown)


def test_prompts_of_every_kind(llm: LLM):
    by_text = llm.generate(["The capital of France is"], GREEDY, progress=False)[0]
    assert "Paris" in by_text.text
    assert llm.generate([[5, 6, 7], [8, 9]], GREEDY, progress=False)[1].prompt_tokens == 2
    assert llm.generate([5, 6, 7], GREEDY, progress=False)[0].prompt_tokens == 3
    assert llm.generate([], GREEDY, progress=False) == []


def test_chat(llm: LLM):
    questions = [
        [{"role": "user", "content": f"What is the capital of {name}?"}] for name in ("Japan", "Italy")
    ]
    params = SamplingParams(temperature=0, max_tokens=40)
    answers = llm.chat(questions, params, progress=False)
    assert "Tokyo" in answers[0].text and "Rome" in answers[1].text
    assert llm.chat(questions[0], params, progress=False)[0].text == answers[0].text


def test_embeddings(llm: LLM, capsys: pytest.CaptureFixture[str]):
    """More inputs than one call takes, with the same bits as alone; a client gets the same of the service."""
    texts = [f"{number} bottles of beer" for number in range(300)]
    vectors = llm.embed(texts)
    assert "300/300" in capsys.readouterr().err
    assert all(abs(sum(value * value for value in vector) - 1) < 1e-5 for vector in vectors)
    assert llm.embed(texts[299], progress=False) == [vectors[299]]
    with Client(llm.address) as client:
        assert client.embed(texts[7:9]) == vectors[7:9]
        assert len(client.embed([5, 6, 7], dimensions=16, normalize=False)[0]) == 16
        assert client.model().embedding_size == len(vectors[0])
    with pytest.raises(InvalidArgument, match="dimensions"):
        llm.embed("a", dimensions=1 << 20, progress=False)


def test_inputs_of_a_call_are_bounded_in_bytes():
    """What all have, such as a query, counts for each."""
    texts = [prompt_pb2.Prompt(text="x" * size) for size in (5 << 20, 2 << 20, 2 << 20, 9 << 20, 1)]
    assert [len(part) for part in _parts(texts, 0)] == [2, 1, 1, 1]
    assert [len(part) for part in _parts(texts, 1 << 20)] == [1, 2, 1, 1]
    assert [len(part) for part in _parts([prompt_pb2.Prompt(text="x")] * 600, 10)] == [256, 256, 88]
    assert not list(_parts([], 0))


def test_scores(llm: LLM):
    """Cosines, in the order of more documents than one call takes."""
    query, *texts = [f"{number} bottles of beer" for number in range(301)]
    one, *others = llm.embed([query, *texts], progress=False)
    cosines = [sum(a * b for a, b in zip(one, other, strict=True)) for other in others]
    scores = llm.score(query, texts, progress=False)
    assert scores == pytest.approx(cosines, abs=1e-6)
    assert llm.score(query, texts[7], progress=False) == scores[7:8]
    with pytest.raises(InvalidArgument, match="instruction"):
        llm.score(query, texts, instruction="none", progress=False)


def test_classes(tmp_path: Path):
    folder, _ = classifier(make_checkpoint("llama", tmp_path / "llama"), tmp_path / "classifier", 3)
    with LLM(str(folder)) as llm, Client(llm.address) as client:
        texts = [f"text {number}" for number in range(300)]
        found = llm.classify(texts, progress=False)
        assert found.labels == ["label 0", "label 1", "label 2"] and len(found.probabilities) == 300
        assert client.classify(texts[290:]).probabilities == found.probabilities[290:]


def test_embeddings_survive_the_death_of_the_worker(llm: LLM):
    """It stops, and is killed in a step whose rows pool, while most inputs wait."""
    texts = [f"{number} bottles of beer on the wall, and one more" for number in range(100)]
    expected = llm.embed(texts, progress=False)
    tokens = llm.embed_tokens(texts[:7], progress=False)
    assert [each.vectors[-1] for each in tokens] == expected[:7]
    (before,) = services.processes(llm._service.pid)["worker"]
    os.kill(before, signal.SIGSTOP)
    assert llm.embed(texts, progress=False) == expected
    assert before not in services.processes(llm._service.pid)["worker"]


def test_a_wrong_request_raises_and_leaves_nothing_behind(llm: LLM):
    params = [SamplingParams(max_tokens=500, ignore_eos=True), SamplingParams(top_p=7)]
    with pytest.raises(InvalidArgument) as caught:
        llm.generate(["a", "b"], params, progress=False)
    assert caught.value.__notes__ == ["in prompt 1 (the first is 0)"]
    with Client(llm.address) as client:
        services.wait_until(lambda: services.is_idle(client))


def test_priority_and_tenant_are_those_of_the_request(llm: LLM):
    """A tenant has a prefix cache of its own."""
    prompt, seen = list(range(16, 116)), []
    for tenant in ("a", "b", "a"):
        (answer,) = llm.generate([prompt], GREEDY, priority=-3, tenant=tenant, progress=False)
        seen.append(answer.usage.cached_prompt_tokens > 0)
    assert seen == [False, False, True]
    with pytest.raises(InvalidArgument) as caught:
        llm.chat([{"role": "user", "content": "a"}], GREEDY, priority=1001, progress=False)
    assert caught.value.field == "priority"


def test_wrong_arguments(llm: LLM):
    with pytest.raises(ValueError, match="2 prompts, but 1"):
        llm.generate(["a", "b"], [GREEDY])
    with pytest.raises(TypeError, match="max_num_sequences"):
        LLM("demo", max_num_sequences=3)
    with pytest.raises(ValueError, match="policy: 'lifo' is none of fair, fcfs"):
        LLM("demo", policy="lifo")


def test_errors_in_place_of_results(llm: LLM):
    params = [GREEDY, SamplingParams(top_p=7), GREEDY]
    first, error, last = llm.generate(["a", "b", "c"], params, progress=False, on_error="return")
    assert isinstance(error, InvalidArgument) and error.field == "sampling.top_p"
    assert isinstance(first, Generation) and isinstance(last, Generation) and last.finish_reason


def test_options_and_iterables(llm: LLM):
    answers = llm.generate((f"{number}," for number in range(3)), temperature=0, max_tokens=4, progress=False)
    assert [len(answer.token_ids) for answer in answers] == [4, 4, 4]
    with pytest.raises(TypeError, match="this is a dict"):
        llm.generate({"prompt": "a"}, progress=False)
    with pytest.raises(TypeError, match="not bytes"):
        llm.generate(b"a", progress=False)
    with pytest.raises(ValueError, match="on_error"):
        llm.generate("a", progress=False, on_error="ignore")


BATCH = [f"{number}, {number + 1}," for number in range(60)]
BATCH_PARAMS = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def mortal() -> Iterator[tuple[LLM, list[Generation]]]:
    """A model whose processes are killed, and what it answers before."""
    flags = {"device": "simulated", "profile": "cpu", "worker_fault": ("slow-factor=4",)}
    with LLM("demo", max_num_seqs=4, max_deaths=99, **flags) as llm:
        yield llm, llm.generate(BATCH, BATCH_PARAMS, progress=False)


@pytest.mark.parametrize("victim", ["frontend", "engine", "worker"])
def test_a_batch_survives_the_death_of_any_process(mortal: tuple[LLM, list[Generation]], victim: str):
    """In the middle of it, some answers are there, some on their way, some requests not sent yet."""
    llm, expected = mortal
    with Client(llm.address) as client:

        def kill() -> None:
            services.wait_until(lambda: any(rank.running_requests for rank in client.load().ranks))
            (pid,) = services.processes(llm._service.pid)[victim]
            os.kill(pid, signal.SIGKILL)

        killer = threading.Thread(target=kill)
        killer.start()
        while killer.is_alive():  # on a busy machine it may see none of the first batch
            answers = llm.generate(BATCH, BATCH_PARAMS, progress=False, cache_salt=f"death of {victim}")
            assert [answer.token_ids for answer in answers] == [answer.token_ids for answer in expected]
        killer.join()


def test_the_end_of_the_service_ends_the_batch():
    slowly = ("slow-factor=20",)  # 10 ms per token: it is not over before the kill
    with LLM("demo", device="simulated", profile="cpu", max_num_seqs=1, worker_fault=slowly) as llm:
        with Client(llm.address) as client:
            params = SamplingParams(max_tokens=800, ignore_eos=True)

            def kill() -> None:
                services.wait_until(lambda: any(rank.running_requests for rank in client.load().ranks))
                os.kill(llm._service.pid, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            with pytest.raises(Unavailable) as caught:
                llm.generate(["a"] * 4, params, progress=False)
            killer.join()
        assert "make a new LLM" in caught.value.todo


FORKS = """
import os, sys
import pagewire

llm = pagewire.LLM("demo", max_num_seqs=2)
child = os.fork()
if not child:
    try:
        llm.generate("a", progress=False)
    except RuntimeError as error:
        print(error, flush=True)
    del llm
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
(answer,) = llm.generate("The capital of France is", temperature=0, max_tokens=4, progress=False)
print(answer.text, flush=True)
"""


def test_a_fork_leaves_the_service_alone():
    """Its exit used to stop the service of its parent, and to hang."""
    run = subprocess.run(
        [sys.executable, "-c", FORKS],
        capture_output=True,
        text=True,
        timeout=services.PATIENCE_S,
        cwd=Path(__file__).parents[2],
    )
    assert run.returncode == 0, run.stderr
    assert "not to a fork" in run.stdout and "Paris" in run.stdout


def test_closing_stops_the_service():
    llm = LLM("demo", device="simulated", profile="instant")
    pids = [pid for found in services.processes(llm._service.pid).values() for pid in found]
    with services.all_die([llm._service.pid, *pids]):
        llm.close()
    llm.close()
