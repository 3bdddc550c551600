"""A request that is submitted again while it runs goes on for its last call; nothing is computed twice."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from engine_core import score_history
from engine_core.ownership import MOST_HANDOVERS
from pagewire.internal.v1.engine_pb2 import Abort, AbortByIds, AddRequest, Hello, Utility
from pagewire.ipc.columns import unpack_u8, unpack_u64
from pagewire.v1.generation_pb2 import BeamSearch, LogprobOptions
from tests.engine_core.fakes import Ledger, add_request, expected_output
from tests.engine_core.house import EPOCH, House

A, B = b"a", b"b"
FIRST, AGAIN = 1, 9
"""Handles of the two calls."""


@pytest.fixture(params=[False, True], ids=["sync", "ahead"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(ahead=request.param)
    yield made
    made.inbox.close()


def submit(
    house: House,
    frontend: bytes = A,
    handle: int = FIRST,
    content: bytes = b"same",
    ended: Sequence[int] = (),
    grace_ms: int = 0,
    **fields: Any,
) -> AddRequest:
    """A call of the one request that all tests are about. ended: sequences that have ended."""
    message = add_request(FIRST, **{"max_tokens": 12, "ignore_eos": True, **fields})
    message.handle, message.content_digest = handle, content
    message.ended_indexes.extend(ended)
    message.disconnect_grace_ms = grace_ms
    house.put(message, frontend)
    return message


def ledger_of(house: House, frontend: bytes, message: AddRequest) -> Ledger:
    """What a frontend holds, with what was delivered before."""
    ledger = Ledger()
    for part in message.delivered:
        ledger.tokens[message.handle, part.index] += expected_output(message, part.index)[0][
            : len(part.token_ids) // 4
        ]
    for owner, sent in house.sent:
        if owner == frontend and sent.HasField("step_outputs"):
            ledger.take(sent.step_outputs)
    return ledger


def is_whole(house: House, frontend: bytes, message: AddRequest, n: int = 1) -> None:
    """The frontend has all of the output, as it is without another call."""
    ledger = ledger_of(house, frontend, message)
    for index in range(n):
        key = message.handle, index
        assert (ledger.tokens[key], ledger.ends[key]) == expected_output(message, index)


def failures_of(house: House) -> list[tuple[int, str]]:
    return [(failure.handle, failure.reason) for failure in house.failures()]


def alone(**fields: Any) -> tuple[int, Ledger]:
    """How many steps the request takes without another call, and what its frontend holds then."""
    house = House()
    message = submit(house, **fields)
    house.run()
    house.inbox.close()
    return house.scheduler.step, ledger_of(house, A, message)


@pytest.mark.parametrize("num_delivered", [0, 2])
def test_the_last_call_gets_all_and_nothing_is_computed_twice(house: House, num_delivered: int) -> None:
    first = submit(house)
    house.step(5)
    output = expected_output(first, 0)[0]
    before = ledger_of(house, A, first).tokens[FIRST, 0]
    assert before and before == output[: len(before)]
    again = submit(house, B, AGAIN, delivered={0: output[:num_delivered]} if num_delivered else None)
    house.run()
    is_whole(house, B, again)
    assert failures_of(house) == [(FIRST, "CONTINUED_ELSEWHERE")]
    assert not ledger_of(house, A, first).ends and house.scheduler.step == alone()[0]
    assert house.core.counters.handovers == {"true": 1} and house.core.counters.requests == 1


def test_a_later_call_of_the_same_frontend(house: House) -> None:
    submit(house)
    house.step(3)
    again = submit(house, A, AGAIN)
    house.run()
    is_whole(house, A, again)


def test_what_waits_for_a_row_is_taken_over_in_its_place() -> None:
    house = House(rows=1)
    house.put(add_request(5, max_tokens=4))
    house.step()
    submit(house)
    house.put(add_request(6, max_tokens=4))
    house.step()
    again = submit(house, B, AGAIN)
    house.run()
    is_whole(house, B, again)
    assert ends_of(house) == [5, AGAIN, 6]
    house.inbox.close()


def ends_of(house: House) -> list[int]:
    """Handles in the order in which their requests end."""
    ends = []
    for _, sent in house.sent:
        columns = unpack_u64(sent.step_outputs.handles), unpack_u8(sent.step_outputs.finish_reasons)
        ends += [handle for handle, reason in zip(*columns, strict=True) if reason]
    return ends


@pytest.mark.parametrize("content", [b"other", b""])
def test_another_content_is_refused(house: House, content: bytes) -> None:
    first = submit(house)
    house.step(3)
    submit(house, B, AGAIN, content)
    house.run()
    is_whole(house, A, first)
    assert failures_of(house) == [(AGAIN, "REQUEST_ID_IN_USE")]


def test_a_request_without_a_digest_is_not_given_away(house: House) -> None:
    first = submit(house, content=b"")
    house.step(3)
    submit(house, B, AGAIN, b"")
    house.run()
    is_whole(house, A, first)
    assert failures_of(house) == [(AGAIN, "REQUEST_ID_IN_USE")]


def test_the_earlier_call_does_not_get_it_back(house: House) -> None:
    """Its frontend sends it again, as a core that it was at is lost."""
    house.now = 100.0
    later = submit(house, B, AGAIN, age_us=1_000_000)
    house.step(3)
    submit(house, A, FIRST, age_us=2_000_000, again=True)
    house.run()
    is_whole(house, B, later)
    assert failures_of(house) == [(FIRST, "CONTINUED_ELSEWHERE")]


def test_an_aborted_call_does_not_get_what_a_later_one_left(house: House) -> None:
    """Messages wait on their way, so that a request may look younger than its Abort; its frontend is lost,
    and sends it again with its age (simulation, seed 7184)."""
    house.now = 100.0
    abort = Utility(call_id=1, abort_by_ids=AbortByIds(request_ids=[submit(house, A, FIRST).request_id]))
    house.put(abort, B)
    house.now = 101.0
    submit(house, A, AGAIN, age_us=500_000, grace_ms=60_000)
    house.step(2)
    house.lose(A)
    again = submit(house, B, FIRST, age_us=2_000_000, again=True)
    house.step()
    assert (FIRST, "REQUEST_ABORTED") in failures_of(house)
    assert not ledger_of(house, B, again).tokens


def test_the_end_of_the_earlier_call_and_of_its_frontend_do_not_matter(house: House) -> None:
    submit(house)
    house.step(3)
    again = submit(house, B, AGAIN)
    house.step()
    house.put(Abort(handle=FIRST), A)
    house.put(Hello(known_epoch=EPOCH + 1), A)
    house.lose(A)
    house.run()
    is_whole(house, B, again)


def test_the_last_call_can_be_aborted(house: House) -> None:
    submit(house)
    house.step(3)
    again = submit(house, B, AGAIN)
    house.step()
    house.put(Abort(handle=AGAIN), B)
    house.run()
    assert not ledger_of(house, B, again).ends and house.scheduler.pool.num_free == 64


def test_sequences_that_have_ended_are_sent_too(house: House) -> None:
    n = 3
    outputs = [
        expected_output(add_request(FIRST, n=n, max_tokens=20, ignore_eos=True), i)[0] for i in range(n)
    ]
    fields = {"n": n, "max_tokens": 20, "stop_token_ids": [outputs[0][5]]}
    first = submit(house, **fields)
    while not ledger_of(house, A, first).ends:
        house.step()
    assert [*ledger_of(house, A, first).ends] == [(FIRST, 0)], "the others go on"
    again = submit(house, B, AGAIN, **fields)
    house.run()
    ledger = ledger_of(house, B, again)
    for index in range(n):
        output, reason = expected_output(again, index)
        assert (ledger.tokens[AGAIN, index], ledger.ends[AGAIN, index]) == (output, reason)


@pytest.mark.parametrize("num_delivered", [0, 2])
def test_what_ended_by_its_text_is_sent_without_an_end(house: House, num_delivered: int) -> None:
    """The core does not know where its text ends. The next frontend finds the same end in the same tokens."""
    fields = {"n": 3, "max_tokens": 20, "ignore_eos": True}
    first = submit(house, **fields)
    house.step(5)
    house.put(Abort(handle=FIRST, indexes=[1]), A)
    house.step()
    known = ledger_of(house, A, first).tokens[FIRST, 1]
    again = submit(house, B, AGAIN, delivered={1: known[:num_delivered]} if num_delivered else None, **fields)
    house.run()
    ledger = ledger_of(house, B, again)
    assert ledger.tokens[AGAIN, 1][: len(known)] == known and (AGAIN, 1) not in ledger.ends
    for index in (0, 2):
        assert (ledger.tokens[AGAIN, index], ledger.ends[AGAIN, index]) == expected_output(again, index)
    assert house.core.counters.handovers == {"true": 1}


@pytest.mark.parametrize("is_taken_over", [False, True], ids=["as it came", "as it was taken over"])
def test_what_ended_by_its_text_elsewhere_is_computed_again(house: House, is_taken_over: bool) -> None:
    """The core need not have the tokens that a frontend knows, whose end nothing would reach."""
    fields = {"n": 3, "max_tokens": 20, "ignore_eos": True}
    if is_taken_over:
        submit(house, **fields)
        house.step(3)
    submit(house, A, 5, ended=[1], **fields)
    house.step(3)
    again = submit(house, B, AGAIN, **fields)
    house.run()
    is_whole(house, B, again, n=3)
    assert house.core.counters.handovers["false"] == 1


def test_beams_are_delivered_at_the_end(house: House) -> None:
    beams = BeamSearch(width=3, length_penalty=1.0, early_stopping=False)
    first = submit(house, beams=beams, max_tokens=6)
    house.step(4)
    again = submit(house, B, AGAIN, beams=beams, max_tokens=6)
    house.run()
    is_whole(house, B, again)
    assert failures_of(house) == [(FIRST, "CONTINUED_ELSEWHERE")] and first.handle == FIRST


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("num_delivered", [0, 3])
def test_log_probabilities_that_were_sent(house: House, num_delivered: int, is_kept: bool) -> None:
    """They are kept of requests whose client chose the id; others are computed again."""
    options, grace_ms = LogprobOptions(top_n=2), 1000 * is_kept
    first = submit(house, logprobs=options, grace_ms=grace_ms)
    house.step(6)
    output = expected_output(first, 0)[0]
    delivered = {0: output[:num_delivered]} if num_delivered else None
    again = submit(house, B, AGAIN, logprobs=options, delivered=delivered, grace_ms=grace_ms)
    house.run()
    is_whole(house, B, again)
    num_steps, held = alone(logprobs=options)
    assert ledger_of(house, B, again).scores[AGAIN, 0] == held.scores[FIRST, 0][num_delivered:]
    assert failures_of(house) == [(FIRST, "CONTINUED_ELSEWHERE")]
    assert house.core.counters.handovers == {str(is_kept).lower(): 1}
    assert (house.scheduler.step == num_steps) == is_kept


@pytest.mark.parametrize("is_kept", [True, False])
def test_log_probabilities_of_a_prompt_that_were_sent(is_kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that exceed the memory for them are computed again."""
    if not is_kept:
        monkeypatch.setattr(score_history, "MOST_BYTES", 1000)
    house, options = House(budget=4), LogprobOptions(top_n=2)
    fields = {"prompt": 14, "logprobs": options, "prompt_logprobs": options, "grace_ms": 1000}
    submit(house, **fields)
    house.step(2)
    for handle, frontend in ((5, A), (AGAIN, B)):
        again = submit(house, frontend, handle, **fields)
        house.step(3)
    house.run()
    is_whole(house, B, again)
    held, alone_held = ledger_of(house, B, again), alone(**fields)[1]
    assert held.scores[AGAIN, 0] == alone_held.scores[FIRST, 0]
    assert held.prompt_scores[AGAIN] == alone_held.prompt_scores[FIRST]
    assert house.core.counters.handovers["false"] == (0 if is_kept else 2)
    house.inbox.close()


def test_log_probabilities_that_were_not_sent_yet_are_sent_to_the_last_call() -> None:
    house = House(budget=4)
    options = LogprobOptions(top_n=2)
    fields = {"prompt": 10, "logprobs": options, "prompt_logprobs": options}
    submit(house, **fields)
    again = submit(house, B, AGAIN, **fields)
    house.run()
    is_whole(house, B, again)
    held, alone_held = ledger_of(house, B, again), alone(**fields)[1]
    assert held.scores[AGAIN, 0] == alone_held.scores[FIRST, 0]
    assert held.prompt_scores[AGAIN] == alone_held.prompt_scores[FIRST]
    assert house.core.counters.handovers == {"true": 1}
    house.inbox.close()


def test_a_client_that_holds_something_else_is_not_believed(house: House) -> None:
    """It gets what follows its own tokens, as any continuation does."""
    first = submit(house)
    house.step(5)
    wrong = [token ^ 1 for token in expected_output(first, 0)[0][:2]]
    submit(house, B, AGAIN, delivered={0: wrong})
    house.run()
    assert house.core.counters.handovers == {"false": 1}


def test_a_message_that_cannot_be_read_changes_nothing(house: House) -> None:
    first = submit(house)
    house.step(3)
    bad = add_request(FIRST, max_tokens=12, ignore_eos=True)
    bad.handle, bad.content_digest = AGAIN, b"same"
    bad.delivered.add(index=7, token_ids=b"123")
    house.put(bad, B)
    house.run()
    is_whole(house, A, first)
    assert [handle for handle, _ in failures_of(house)] == [AGAIN] and not house.core.counters.internal_errors


def test_the_deadline_is_that_of_the_last_call(house: House) -> None:
    for handle, seconds in ((FIRST, 10), (AGAIN, 30)):
        message = add_request(FIRST, max_tokens=100, ignore_eos=True)
        message.handle, message.content_digest = handle, b"same"
        message.deadline.seconds = seconds
        house.put(message, A)
        house.step()
    for now, num_left in ((11.0, 1), (29.0, 1), (31.0, 0)):
        house.now = now
        house.step()
        assert len(house.scheduler.requests) == num_left


def test_what_is_sent_again_is_bounded(house: House) -> None:
    """A client cannot have long output sent to it over and over for one charge: then it is computed again."""
    submit(house)
    house.step(3)
    for number in range(MOST_HANDOVERS):
        submit(house, B, AGAIN + number)
    house.step()
    assert house.core.counters.handovers == {"true": MOST_HANDOVERS}
    last = submit(house, B, AGAIN + MOST_HANDOVERS)
    house.run()
    assert house.core.counters.handovers == {"true": MOST_HANDOVERS, "false": 1}
    is_whole(house, B, last)
