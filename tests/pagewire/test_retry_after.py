"""Rates lately, and places that are promised once."""

import pytest

from pagewire.retry_after import LATEST_S, SOONEST_S, UNKNOWN_S, Comebacks, Rate


def test_a_steady_rate() -> None:
    rate = Rate()
    for tick in range(1000):
        rate.add(3, tick * 0.05)
    assert rate.per_second(1000 * 0.05) == pytest.approx(60, rel=0.06)


def test_a_service_that_has_just_begun_is_not_understated() -> None:
    rate = Rate()
    for tick in range(20):
        rate.add(10, 100 + tick * 0.1)
    assert rate.per_second(102.0) == pytest.approx(100)


def test_an_idle_service_comes_down_to_zero() -> None:
    rate = Rate()
    assert rate.per_second(0.0) == 0
    rate.add(1000, 1.0)
    assert rate.per_second(6.0) == pytest.approx(200)
    assert rate.per_second(11.5) == 0


def test_memory_is_bounded() -> None:
    rate = Rate()
    for tick in range(100_000):
        rate.add(1, tick * 0.001)
    assert len(rate._buckets) <= 21


def test_each_place_is_promised_once() -> None:
    """Two places per second, and three too many are there: the fourth place is the first one that is free."""
    comebacks = Comebacks()
    for tick in range(20):
        comebacks.freed(1, 0.5 * tick)
    promises = [comebacks.promise(4, 10.0) for _ in range(3)]
    assert promises == pytest.approx([2.0, 2.5, 3.0], rel=0.1)
    for tick in range(20, 24):
        comebacks.freed(1, 0.5 * tick)
    assert comebacks.promise(4, 12.0) == pytest.approx(2.0, rel=0.2), "time passes, and others came"
    assert comebacks.promise(4, 30.0) == UNKNOWN_S, "nothing has become free for long"


def test_promises_have_bounds() -> None:
    comebacks = Comebacks()
    assert comebacks.promise(10, 0.0) == UNKNOWN_S
    comebacks.freed(10_000, 1.0)
    assert comebacks.promise(1, 1.0) == SOONEST_S
    assert comebacks.promise(10**9, 1.0) == LATEST_S
    assert comebacks.promise(10**9, 1.0) == LATEST_S, "no promise goes further"


def test_where_there_is_room_no_promise_is_in_the_way() -> None:
    """Many were sent away and went; the next one is not told to wait for them."""
    comebacks = Comebacks()
    comebacks.freed(20, 10.0)
    comebacks.freed(20, 14.0)
    for _ in range(500):
        last = comebacks.promise(2, 14.0)
    assert 25 < last <= 31, "nobody is promised anything further ahead"
    comebacks.forget()
    assert comebacks.promise(2, 14.0) == pytest.approx(0.2, abs=0.01)
