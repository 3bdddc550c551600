"""A request whose client is gone goes on for a grace, in which a submit of the same takes it over."""

from collections.abc import Callable, Iterator

import pytest

from engine_core import ownership
from engine_core.context import NOWHERE
from pagewire.internal.v1.engine_pb2 import Abort, AbortByIds, AddRequest, Hello, TenantTerms, Utility
from pagewire.v1.generation_pb2 import LogprobOptions
from tests.engine_core.fakes import Ledger, add_request, expected_output
from tests.engine_core.house import EPOCH, House

A, B = b"a", b"b"
FIRST, AGAIN = 1, 9


def break_call(house: House) -> None:
    house.put(Abort(handle=FIRST, detach=True), A)


def lose_frontend(house: House) -> None:
    house.lose(A)


def forget(house: House) -> None:
    """The frontend has given up the core, which was silent."""
    house.put(Hello(known_epoch=EPOCH + 1), A)


BREAKS = [break_call, lose_frontend, forget]


@pytest.fixture(params=[False, True], ids=["sync", "ahead"])
def house(request: pytest.FixtureRequest) -> Iterator[House]:
    made = House(ahead=request.param)
    yield made
    made.inbox.close()


def submit(
    house: House,
    frontend: bytes = A,
    handle: int = FIRST,
    *,
    grace_s: float = 2.0,
    content: bytes = b"same",
    number: int = 1,
    max_tokens: int = 12,
    delivered: dict[int, list[int]] | None = None,
    logprobs: LogprobOptions | None = None,
    terms: TenantTerms | None = None,
    age_us: int = 0,
) -> AddRequest:
    """A call of the request with a number."""
    message = add_request(
        number, max_tokens=max_tokens, ignore_eos=True, delivered=delivered, logprobs=logprobs, terms=terms
    )
    message.handle, message.content_digest, message.age_us = handle, content, age_us
    message.disconnect_grace_ms = round(1000 * grace_s)
    house.put(message, frontend)
    return message


def is_whole(house: House, message: AddRequest) -> None:
    """Frontend B has all output, in order."""
    ledger = house.outputs_of(B)
    key = message.handle, 0
    assert (ledger.tokens[key], ledger.ends[key]) == expected_output(message, 0)


def num_steps_alone() -> int:
    house = House()
    submit(house)
    house.run()
    house.inbox.close()
    return house.scheduler.step


@pytest.mark.parametrize("num_steps", [0, 1, 2], ids="{} steps without a call".format)
@pytest.mark.parametrize("breaks", BREAKS)
def test_it_goes_on_for_the_next_call(house: House, breaks: Callable[[House], None], num_steps: int) -> None:
    submit(house)
    house.step(4)
    breaks(house)
    house.step(num_steps)
    again = submit(house, B, AGAIN)
    house.run()
    is_whole(house, again)
    assert house.scheduler.step == num_steps_alone() and house.core.counters.requests == 1
    assert house.core.counters.handovers == {"true": 1}
    assert not [sent for owner, sent in house.sent if owner == NOWHERE]
    reasons = {failure.reason for failure in house.failures()}
    assert reasons == ({"FRONTEND_LOST"} if breaks is lose_frontend else set())


def test_a_frontend_that_was_only_slow_sends_it_again(house: House) -> None:
    """Its clock and the core's may differ by a little: the call need not look later than itself."""
    house.now = 10.0
    submit(house, B, age_us=1_000_000)
    house.step(4)
    house.lose(B)
    house.step()
    held = house.outputs_of(B).tokens[FIRST, 0]
    again = submit(house, B, AGAIN, delivered={0: held}, age_us=1_000_200)
    before = len(house.sent)
    house.run()
    ledger = Ledger()
    ledger.tokens[AGAIN, 0] += held
    for _, sent in house.sent[before:]:
        if sent.HasField("step_outputs"):
            ledger.take(sent.step_outputs)
    assert ledger.tokens[AGAIN, 0] == expected_output(again, 0)[0] and (AGAIN, 0) in ledger.ends
    assert house.core.counters.handovers == {"true": 1}
    assert house.scheduler.step == num_steps_alone() and again.delivered


def test_what_ends_without_a_call_is_kept_for_the_grace(house: House) -> None:
    options = LogprobOptions(top_n=1)
    submit(house, logprobs=options)
    house.step(3)
    break_call(house)
    house.run()
    assert house.scheduler.pool.num_free == 64
    num_steps = house.scheduler.step
    again = submit(house, B, AGAIN, logprobs=options)
    house.step()
    is_whole(house, again)
    assert house.scheduler.step == num_steps
    undisturbed = House()
    submit(undisturbed, logprobs=options)
    undisturbed.run()
    undisturbed.inbox.close()
    assert house.outputs_of(B).scores[AGAIN, 0] == undisturbed.outputs_of(A).scores[FIRST, 0]
    later = submit(house, B, AGAIN + 1)  # it was kept for one call
    house.run()
    is_whole(house, later)
    assert house.scheduler.step > num_steps


@pytest.mark.parametrize("has_ended", [False, True])
def test_the_grace_ends(house: House, has_ended: bool) -> None:
    submit(house, max_tokens=12 if has_ended else 60)
    house.step(3)
    break_call(house)
    house.step()
    if has_ended:
        house.run()
    house.now = 1.9
    submit(house, A, 7, number=2)
    house.step()
    assert len(house.core._frontends.detached) == 1
    house.now = 2.0
    house.step()
    assert not len(house.core._frontends.detached) and not house.scheduler.requests.by_id("request-1")
    again = submit(house, B, AGAIN)
    house.run()
    is_whole(house, again)
    assert house.core.counters.requests == 3 and not house.core.counters.handovers


@pytest.mark.parametrize("grace_s, content", [(0.0, b"same"), (2.0, b"")])
def test_a_request_without_a_grace_or_a_digest_ends_at_once(
    house: House, grace_s: float, content: bytes
) -> None:
    submit(house, grace_s=grace_s, content=content)
    house.step(3)
    break_call(house)
    house.step()
    assert not house.scheduler.requests and not len(house.core._frontends.detached)


@pytest.mark.parametrize("has_ended", [False, True])
def test_its_id_is_free_for_another_content(house: House, has_ended: bool) -> None:
    submit(house)
    house.step(3)
    break_call(house)
    if has_ended:
        house.run()
    other = submit(house, B, AGAIN, content=b"other", max_tokens=5)
    house.run()
    is_whole(house, other)
    assert not house.failures() and not len(house.core._frontends.detached)


def test_it_can_be_aborted_by_its_id(house: House) -> None:
    submit(house)
    house.step(3)
    break_call(house)
    house.step()
    house.put(Utility(call_id=1, abort_by_ids=AbortByIds(request_ids=["request-1"])), B)
    house.step()
    assert not house.scheduler.requests
    house.now = 1.0
    again = submit(house, B, AGAIN)
    house.run()
    is_whole(house, again)
    assert house.core.counters.requests == 2


def test_it_counts_for_its_tenant(house: House) -> None:
    terms = TenantTerms(weight=1.0, max_requests=1)
    submit(house, terms=terms)
    house.step(3)
    break_call(house)
    submit(house, B, 7, number=2, content=b"other", terms=terms)
    house.step()
    assert [failure.reason for failure in house.failures()] == ["TENANT_QUOTA"]


def test_a_tenant_has_so_many(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "MOST_PER_TENANT", 2)
    for number in (1, 2, 3):
        submit(house, A, number, number=number, max_tokens=40)
    house.step(3)
    for number in (1, 2, 3):
        house.put(Abort(handle=number, detach=True), A)
    house.step()
    assert [request.request_id for request in house.scheduler.requests] == ["request-2", "request-3"]


def test_a_frontend_that_dies_leaves_all_that_it_had(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ownership, "MOST_PER_TENANT", 1)
    for number in (1, 2, 3):
        submit(house, A, number, number=number, max_tokens=40)
    house.step(3)
    house.lose(A)
    house.step()
    assert len(house.scheduler.requests) == 3


def test_it_is_paid_once_when_its_frontend_is_gone(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as its client may come back nothing is refunded; afterwards what it cost is a credit."""
    refunded: list[str] = []
    monkeypatch.setattr(
        house.core._frontends.detached, "_refund", lambda request: refunded.append(request.request_id)
    )
    submit(house, max_tokens=40)
    house.step(3)
    house.lose(A)
    house.step()
    assert not refunded and house.scheduler.requests
    house.now = 3.0
    house.step()
    assert refunded == ["request-1"] and not house.scheduler.requests


def test_a_client_that_asks_where_it_is_finds_it(house: House) -> None:
    submit(house)
    house.step(3)
    break_call(house)
    house.run()
    for name in ("request-1", "request-2"):
        call = Utility(call_id=1)
        call.find_request.request_id = name
        house.put(call, B)
    house.step()
    found = [sent.utility_result.found.in_flight for owner, sent in house.sent if owner == B]
    assert found == [True, False]
