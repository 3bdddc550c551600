"""The hit rate."""

from engine_core.stats import HitRate


def test_the_hit_rate_is_that_of_the_last_queries() -> None:
    rate = HitRate()
    assert rate.ratio == 0
    rate.add(10, 0)
    rate.add(30, 20)
    assert rate.ratio == 0.5
    for _ in range(1000):
        rate.add(4, 1)
    assert rate.ratio == 0.25 and len(rate._last) == 1000
