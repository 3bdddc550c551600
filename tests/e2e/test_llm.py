"""pagewire.LLM: a model as a Python object."""

import re
from collections.abc import Iterator

import pytest

from pagewire import LLM, Client, SamplingParams
from pagewire.client.errors import InvalidArgument
from tests.e2e import services

GREEDY = SamplingParams(temperature=0, max_tokens=12)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM("demo", max_num_seqs=4) as llm:
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


def test_closing_stops_the_service():
    llm = LLM("demo")
    pids = [pid for found in services.processes(llm._service.pid).values() for pid in found]
    with services.all_die([llm._service.pid, *pids]):
        llm.close()
    llm.close()
