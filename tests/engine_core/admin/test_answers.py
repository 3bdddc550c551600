"""Utility calls are answered without holding up a step, whatever they ask."""

import logging
from collections.abc import Iterator

import pytest

from engine_core.admin import answers as module
from pagewire.internal.v1.engine_pb2 import Abort, ListRequests, Utility
from tests.engine_core.admin.asking import FRONTEND, answers, ask
from tests.engine_core.fakes import add_request, expected_output
from tests.engine_core.house import House


@pytest.fixture
def house() -> Iterator[House]:
    made = House()
    yield made
    made.inbox.close()


def test_steps_go_on_while_an_answer_is_put_together(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece in each step; what has ended in between is left out, and outputs are what they would be."""
    monkeypatch.setattr(module, "WORK_PER_STEP", 1)
    messages = [add_request(handle, max_tokens=30, ignore_eos=True) for handle in range(1, 7)]
    for message in messages:
        house.put(message)
    house.step()
    house.put(Utility(call_id=1, list_requests=ListRequests(limit=100)), FRONTEND)
    house.step(2)
    before = house.scheduler.step
    assert not answers(house)
    house.put(Abort(handle=6))
    while not answers(house):
        house.step()
    assert house.scheduler.step - before >= 4
    names = [each.request_id for each in answers(house)[0].requests.requests]
    assert names == [f"request-{handle}" for handle in range(1, 6)]
    house.run()
    tokens = house.outputs_of(b"a").tokens
    assert all(tokens[each.handle, 0] == expected_output(each, 0)[0] for each in messages[:5])


def test_an_idle_core_answers(house: House) -> None:
    """It does not wait for events before the answer is complete."""
    assert not ask(house, list_requests=ListRequests(limit=1)).requests.total


def test_a_call_too_many_is_answered_without_a_result(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PENDING", 2)
    for number in range(4):
        house.put(Utility(call_id=number, list_requests=ListRequests(limit=1)), FRONTEND)
    while len(answers(house)) < 4:
        house.step()
    found = {each.call_id: each.WhichOneof("result") for each in answers(house)}
    assert found == {0: "requests", 1: "requests", 2: None, 3: None}
    assert not house.core.counters.bad_messages


def test_an_unknown_call_is_a_bad_message(house: House) -> None:
    house.put(Utility(call_id=3), FRONTEND)
    house.step()
    (answer,) = answers(house)
    assert answer.call_id == 3 and answer.WhichOneof("result") is None
    assert house.core.counters.bad_messages == 1


def test_a_question_that_raises_ends_no_core(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> Iterator[int]:
        yield 1
        raise RuntimeError("a bug")

    monkeypatch.setattr(module, "list_requests", broken)
    message = add_request(1)
    house.put(message)
    with caplog.at_level(logging.ERROR):
        answer = ask(house, list_requests=ListRequests(limit=1))
    assert answer.WhichOneof("result") is None and "a bug" in caplog.text
    assert house.core.counters.internal_errors == 1
    house.run()
    assert house.outputs_of(b"a").tokens[1, 0] == expected_output(message, 0)[0]
