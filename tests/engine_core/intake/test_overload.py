"""A full queue refuses requests, and says when to retry; a flood fills it for its own tenant only."""

import pytest

from engine_core.errors import Code
from engine_core.intake.overload import QUEUE_FULL, WAIT_TOO_LONG, QueueBounds
from pagewire.internal.v1.engine_pb2 import AddRequest, RequestFailed, TenantTerms
from pagewire.retry_after import LATEST_S, SOONEST_S, UNKNOWN_S
from tests.engine_core.fakes import add_request
from tests.engine_core.house import House

STEP_S = 0.1
OUTPUT = 10
PROMPT = 5


def request(handle: int, prompt: int = PROMPT, **options: object) -> AddRequest:
    return add_request(handle, prompt, max_tokens=OUTPUT, ignore_eos=True, **options)  # type: ignore[arg-type]


def full(bounds: QueueBounds, rows: int = 2) -> House:
    """A house whose rows are all taken; nothing waits."""
    house = House(rows=rows, blocks=512, bounds=bounds)
    for handle in range(1000, 1000 + rows):
        house.put(request(handle))
    house.step()
    return house


def steps(house: House, number: int) -> None:
    for _ in range(number):
        house.now += STEP_S
        if house.scheduler.requests or house.inbox:
            house.step()


def refused(house: House) -> dict[int, RequestFailed]:
    return {failure.handle: failure for failure in house.failures()}


def delay(failure: RequestFailed) -> float:
    return failure.retry_delay.ToTimedelta().total_seconds()


def test_the_number_of_waiting_requests_is_bounded() -> None:
    house = full(QueueBounds(requests=3))
    for handle in range(1, 7):
        house.put(request(handle))
    house.step()
    assert {*refused(house)} == {4, 5, 6}
    assert {(each.code, each.reason) for each in refused(house).values()} == {
        (Code.RESOURCE_EXHAUSTED, QUEUE_FULL)
    }
    assert house.core.intake.refused == {QUEUE_FULL: 3}
    house.run()
    house.put(request(7))
    house.step()
    assert 7 not in refused(house), "at once, when the load falls"
    house.inbox.close()


def test_free_rows_are_room_too() -> None:
    """A burst into an idle engine does not queue."""
    house = House(rows=8, bounds=QueueBounds(requests=1))
    for handle in range(1, 11):
        house.put(request(handle))
    house.step()
    assert {*refused(house)} == {10}
    house.inbox.close()


def test_the_number_of_waiting_tokens_is_bounded() -> None:
    """A prompt that exceeds the bound is admitted into an empty queue."""
    house = full(QueueBounds(tokens=20))
    house.put(request(1, prompt=30))
    house.put(request(2))
    house.step()
    assert {*refused(house)} == {2} and "tokens" in refused(house)[2].message
    house.run()
    house.inbox.close()


def test_continued_streams_stretch_the_bounds_and_resent_requests_ignore_them() -> None:
    house = full(QueueBounds(requests=2))
    for handle in range(1, 4):
        house.put(request(handle))
    house.put(request(11, delivered={0: [7, 8]}))
    house.put(request(12, delivered={0: [7, 8]}))
    house.put(request(13, delivered={0: [7, 8]}))
    house.put(request(14, again=True))
    house.step()
    assert {*refused(house)} == {3, 13}
    house.inbox.close()


def test_a_flood_fills_the_queue_for_its_own_tenant_only() -> None:
    """In a full queue each tenant has its share by weight; together they have at most twice the bound."""
    house = full(QueueBounds(requests=12))
    for handle in range(1, 31):
        house.put(request(handle, tenant="flood"))
    house.step()
    assert {*refused(house)} == {*range(13, 31)}
    for handle in range(31, 41):
        house.put(request(handle, tenant="small"))
    house.step()
    assert {*refused(house)} == {*range(13, 31), *range(37, 41)}, "half of the queue is its due"
    heavy = TenantTerms(weight=4)
    for handle in range(41, 52):
        house.put(request(handle, tenant="heavy", terms=heavy))
    house.step()
    taken = {*range(41, 52)} - {*refused(house)}
    assert taken == {*range(41, 47)}, "8 of 12 are its due; but with 18 there, 24 are the most"
    house.run()
    house.scheduler.check_invariants()
    house.inbox.close()


def test_a_request_that_would_wait_too_long_is_refused() -> None:
    """Two rows, a second each: with 3 s at most, about six wait."""
    house = full(QueueBounds(seconds=3.0))
    for handle in range(2000, 2020):
        house.put(request(handle))
        steps(house, 6)  # as fast as it can: so that it knows how fast that is
    steps(house, 40)
    for handle in range(2100, 2102):
        house.put(request(handle))
    steps(house, 1)
    assert not refused(house)
    for handle in range(1, 21):
        house.put(request(handle))
    steps(house, 1)
    found = refused(house)
    assert 4 <= 20 - len(found) <= 8
    assert {each.reason for each in found.values()} == {WAIT_TOO_LONG}
    house.inbox.close()


def test_another_tenant_does_not_wait_for_the_flood_and_is_not_refused() -> None:
    house = full(QueueBounds(seconds=3.0))
    for handle in range(2000, 2040):
        house.put(request(handle, tenant="flood"))
    steps(house, 300)
    for handle in range(2, 40):
        house.put(request(handle, tenant="flood"))
    house.put(request(1, tenant="small"))
    steps(house, 1)
    assert refused(house) and 1 not in refused(house)
    house.inbox.close()


def test_each_queue_slot_is_promised_once() -> None:
    """Two requests begin per second: each refused request is told when the next slot is free, and is admitted
    when it is retried then."""
    house = full(QueueBounds(requests=4))
    for handle in range(2000, 2004):
        house.put(request(handle))
    for handle in range(2004, 2060):  # a queue that is always full, for 28 seconds
        steps(house, 5)
        house.put(request(handle))
    steps(house, 2)
    before = {*refused(house)}
    for handle in range(1, 11):
        house.put(request(handle))
    house.step()
    promised = {handle: delay(each) for handle, each in refused(house).items() if handle not in before}
    delays = [promised[handle] for handle in sorted(promised)]
    assert len(delays) >= 8 and delays == sorted(delays)
    gaps = [later - sooner for sooner, later in zip(delays, delays[1:], strict=False)]
    assert gaps == pytest.approx([0.5] * len(gaps), rel=0.3), "as fast as slots become free"
    start, taken = house.now, 0
    for handle, seconds in sorted(promised.items()):
        while house.now < start + seconds:
            steps(house, 1)
        house.put(request(100 + handle))
        steps(house, 1)
        taken += 100 + handle not in refused(house)
    assert taken >= len(promised) - 2, "rows become free two at a time"
    house.inbox.close()


def test_hints_have_bounds() -> None:
    """Before anything is measured, and up to a minute."""
    house = full(QueueBounds(requests=1))
    for handle in range(1, 4):
        house.put(request(handle))
    house.core._take_events()
    house.scheduler.check_invariants()
    house.step()
    assert all(delay(each) >= SOONEST_S for each in refused(house).values())
    assert UNKNOWN_S in {delay(each) for each in refused(full_without_a_start()).values()}
    for handle in range(4, 400):
        house.put(request(handle))
    house.step()
    assert 30 < max(delay(each) for each in refused(house).values()) <= LATEST_S
    house.inbox.close()


def full_without_a_start() -> House:
    """A core that refuses before anything has begun."""
    house = House(rows=1, bounds=QueueBounds(requests=1))
    for handle in range(1, 5):
        house.put(request(handle))
    house.core._take_events()
    house.inbox.close()
    return house
