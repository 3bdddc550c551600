"""Measured rates, and slots that are offered once."""

import pytest

from pagewire.retry_after import LATEST_S, SOONEST_S, UNKNOWN_S, Rate, RetryAfter


def test_a_steady_rate() -> None:
    rate = Rate()
    for tick in range(1000):
        rate.add(3, tick * 0.05)
    assert rate.per_second(1000 * 0.05) == pytest.approx(60, rel=0.06)


def test_the_rate_of_a_new_service_is_not_understated() -> None:
    rate = Rate()
    for tick in range(20):
        rate.add(10, 100 + tick * 0.1)
    assert rate.per_second(102.0) == pytest.approx(100)


def test_the_rate_of_an_idle_service_falls_to_zero() -> None:
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


def test_each_slot_is_offered_once() -> None:
    """Two slots per second become free, and three too many are in use: the fourth is offered first."""
    estimate = RetryAfter()
    for tick in range(20):
        estimate.freed(1, 0.5 * tick)
    offers = [estimate.offer(4, 10.0) for _ in range(3)]
    assert offers == pytest.approx([2.0, 2.5, 3.0], rel=0.1)
    for tick in range(20, 24):
        estimate.freed(1, 0.5 * tick)
    assert estimate.offer(4, 12.0) == pytest.approx(2.0, rel=0.2), (
        "time has passed, and other requests arrived"
    )
    assert estimate.offer(4, 30.0) == UNKNOWN_S, "no slot has become free for long"


def test_offers_have_bounds() -> None:
    estimate = RetryAfter()
    assert estimate.offer(10, 0.0) == UNKNOWN_S
    estimate.freed(10_000, 1.0)
    assert estimate.offer(1, 1.0) == SOONEST_S
    assert estimate.offer(10**9, 1.0) == LATEST_S
    assert estimate.offer(10**9, 1.0) == LATEST_S, "no offer goes further"


def test_offers_are_forgotten_where_there_is_room() -> None:
    """Refused clients that gave up do not delay the next one."""
    estimate = RetryAfter()
    estimate.freed(20, 10.0)
    estimate.freed(20, 14.0)
    for _ in range(500):
        last = estimate.offer(2, 14.0)
    assert 25 < last <= 31, "offers go no further ahead"
    estimate.forget()
    assert estimate.offer(2, 14.0) == pytest.approx(0.2, abs=0.01)
