"""Requests that cannot meet their deadline are refused at once, but not on a guess or while there is room."""

from datetime import timedelta

import pytest

from engine_core.errors import Code
from engine_core.intake.overload import DEADLINE_UNREACHABLE, predicted_wait
from pagewire.internal.v1.engine_pb2 import AddRequest, RequestFailed
from pagewire.retry_after import LATEST_S, SOONEST_S
from tests.engine_core.fakes import add_request, make
from tests.engine_core.house import House

STEP_S = 0.1
OUTPUT = 10
PROMPT = 5


def request(
    handle: int, deadline: float | None = None, prompt: int = PROMPT, **options: object
) -> AddRequest:
    message = add_request(handle, prompt, max_tokens=OUTPUT, ignore_eos=True, **options)  # type: ignore[arg-type]
    if deadline is not None:
        message.deadline.FromTimedelta(timedelta(seconds=deadline))
    return message


def step(house: House, steps: int = 1) -> None:
    """Runs steps of a tenth of a second, idle ones if there is nothing to do."""
    for _ in range(steps):
        if house.scheduler.requests or house.inbox:
            house.step()
        house.now += STEP_S


def busy(ahead: bool = False, **options: int) -> House:
    """A house with measured throughput, whose rows are all taken."""
    house = House(**({"rows": 4} | options), ahead=ahead)
    for handle in range(1000, 1024):
        house.put(request(handle))
    while house.scheduler.requests or house.inbox:
        step(house)
    for handle in range(2000, 2000 + house.scheduler.num_rows):
        house.put(request(handle))
    step(house)
    return house


def refusals(house: House) -> dict[int, RequestFailed]:
    return {failure.handle: failure for failure in house.failures()}


@pytest.mark.parametrize("ahead", [False, True])
def test_in_an_overload_requests_are_refused_from_the_deadline_on(ahead: bool) -> None:
    """4 rows, a second each: with a deadline of 3 s, about 12 wait, and all others are refused at once."""
    house = busy(ahead)
    for handle in range(1, 41):
        house.put(request(handle, deadline=3.0))
    step(house)
    refused = refusals(house)
    assert 10 <= 40 - len(refused) <= 14
    assert {*refused} == {*range(41 - len(refused), 41)}, "the first that came are taken"
    assert {(failure.code, failure.reason) for failure in refused.values()} == {
        (Code.RESOURCE_EXHAUSTED, DEADLINE_UNREACHABLE)
    }
    assert all(not failure.field and "deadline" in failure.message for failure in refused.values())
    while house.scheduler.requests:
        step(house)
    late = {*range(1, 41)} - {*refused} - {*house.outputs_of(b"a").started}
    assert len(late) <= 4, "rows become free four at a time: the last four may be late"
    house.inbox.close()


def test_the_delay_until_a_retry() -> None:
    """After it the queue is short enough (rows become free four at a time, once a second)."""
    house = busy()
    for handle in range(1, 41):
        house.put(request(handle))
    step(house)
    house.put(request(50, deadline=3.0))
    step(house)
    delay = refusals(house)[50].retry_delay.ToTimedelta().total_seconds()
    assert 5 < delay < 9
    step(house, round((delay + 1) / STEP_S))
    house.put(request(51, deadline=3.0))
    step(house)
    assert 51 not in refusals(house)
    house.inbox.close()


def test_the_delay_has_bounds() -> None:
    house = busy(blocks=256)
    for handle in range(1, 400):
        house.put(request(handle))
    step(house)
    wait = predicted_wait(make(request(500)), house.scheduler)
    for handle, deadline in ((500, 0.1), (501, wait - 0.01)):
        house.put(request(handle, deadline=deadline))
    house.core._take_events()
    delays = [failure.retry_delay.ToTimedelta().total_seconds() for failure in house.failures()]
    assert delays == [LATEST_S, SOONEST_S]
    house.inbox.close()


def test_no_request_is_refused_before_anything_is_measured() -> None:
    house = House(rows=1)
    for handle in range(1, 100):
        house.put(request(handle, deadline=1e-6 if handle > 1 else None))
    house.core._take_events()
    assert not house.failures()
    house.inbox.close()


@pytest.mark.parametrize("deadline", [0.0, 0.05, 0.5])
def test_no_request_is_refused_while_there_is_room(deadline: float) -> None:
    """However little time is left: a request whose deadline has passed times out, and is not refused."""
    house = busy(rows=8)
    while house.scheduler.requests:
        step(house)
    for handle in range(1, 9):
        house.put(request(handle, deadline=deadline))
    house.core._take_events()
    assert not house.failures()
    house.inbox.close()


def test_light_load_does_not_limit_the_estimate() -> None:
    """One request at a time for long, then as many as fit: eight generate more than one does."""
    house = House(rows=8)
    for handle in range(1000, 1030):
        house.put(request(handle))
        step(house, OUTPUT + 1)
    for handle in range(1, 17):
        house.put(request(handle, deadline=1.3))
    step(house)
    assert not house.failures()
    house.inbox.close()


def test_a_stream_that_continues_is_never_refused() -> None:
    house = busy()
    for handle in range(1, 100):
        house.put(request(handle))
    house.put(request(200, deadline=0.5, delivered={0: [7, 8]}))
    house.put(request(201, deadline=0.5))
    step(house)
    assert {*refusals(house)} == {201}
    house.inbox.close()


def test_a_better_class_does_not_wait_for_the_others() -> None:
    house = busy()
    for handle in range(1, 41):
        house.put(request(handle))
    house.put(request(50, deadline=1.5))
    house.put(request(51, deadline=1.5, priority=-1))
    step(house)
    assert {*refusals(house)} == {50}
    house.inbox.close()


def test_a_small_tenant_does_not_wait_for_a_flood() -> None:
    """Its own line counts, and what other tenants are served beside it."""
    house = busy(blocks=256)
    for handle in range(1, 61):
        house.put(request(handle, tenant="flood"))
    step(house)
    scheduler = house.scheduler
    waits = [predicted_wait(make(request(200, tenant=name)), scheduler) for name in ("flood", "small")]
    assert waits[0] > 12 and waits[1] < 2
    for handle in range(61, 69):
        house.put(request(handle, tenant="small"))
    step(house)
    wait = predicted_wait(make(request(200, tenant="small")), scheduler)
    assert 3 < wait < 6, "eight of its own, and as many of the others"
    house.inbox.close()


def test_more_tenants_than_are_sampled() -> None:
    """Each has a waiting request, also the tenant of the new one: all of them come before its second."""
    house = busy(blocks=1024)
    for handle in range(1, 101):
        house.put(request(handle, tenant=f"t{handle}"))
    step(house)
    ahead = house.scheduler.waiting.ahead(make(request(200, tenant="t7")), OUTPUT)
    assert ahead.sequences == pytest.approx(100, abs=3)
    assert ahead.tokens == pytest.approx(500, abs=15)
    house.inbox.close()


def test_blocks_may_be_the_scarcest_resource() -> None:
    """Rows for 8, blocks for half of them."""
    house = House(rows=8, blocks=20)
    for handle in range(1000, 1040):
        house.put(request(handle, prompt=13))
    step(house, 200)
    for handle in range(1, 30):
        house.put(request(handle, prompt=13))
    step(house, 3)
    assert len(house.scheduler.rows.free) > 2
    house.put(request(50, deadline=2.0))
    house.put(request(51, deadline=30.0))
    step(house)
    assert {*refusals(house)} == {50}
    house.inbox.close()


def test_prompts_may_take_the_longest() -> None:
    """One token of output each; 10 tokens of prompts in a step."""
    house = House(rows=8, budget=10, blocks=512)
    for handle in range(1, 40):
        house.put(add_request(handle, 20, max_tokens=1))
    step(house, 20)
    waiting = house.scheduler.waiting.num_tokens
    wait = predicted_wait(make(request(100)), house.scheduler)
    assert wait == pytest.approx(waiting / 10 * STEP_S, rel=0.15)
    house.inbox.close()
