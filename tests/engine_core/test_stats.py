"""The output rate, and the hit rate."""

import pytest

from engine_core.stats import HitRate, Rate


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


def test_the_hit_rate_is_that_of_the_last_queries() -> None:
    rate = HitRate()
    assert rate.ratio == 0
    rate.add(10, 0)
    rate.add(30, 20)
    assert rate.ratio == 0.5
    for _ in range(1000):
        rate.add(4, 1)
    assert rate.ratio == 0.25 and len(rate._last) == 1000
