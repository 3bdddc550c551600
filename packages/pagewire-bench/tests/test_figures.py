"""Percentiles, throughput, goodput and errors of a level."""

import math

import pytest

from pagewire_bench.driver import LevelRun
from pagewire_bench.figures import Percentiles, figures_of, is_good, percentile
from pagewire_bench.load import Load
from pagewire_bench.trace import Trace

FAST = Trace(0.0, 0.0, [(0.1, 1), (0.2, 1), (0.3, 1)], ended=0.3, prompt_tokens=10)
SLOW = Trace(1.0, 1.05, [(2.0, 1), (4.0, 1), (4.1, 1)], ended=4.1, prompt_tokens=20)
REFUSED = Trace(2.0, 2.0, ended=2.01, error="RESOURCE_EXHAUSTED")


def test_percentiles():
    values = [each / 1000 for each in range(101)]
    found = Percentiles.of(values)
    assert [found.p50, found.p90, found.p99, found.mean] == pytest.approx([50.0, 90.0, 99.0, 50.0])
    assert Percentiles.of([]) == Percentiles() and math.isnan(percentile([], 50))


def test_a_level():
    runs = [LevelRun(Load(rate=1.0), 5.0, [FAST, REFUSED]), LevelRun(Load(rate=1.0), 5.0, [SLOW])]
    found = figures_of(runs, {})
    assert (found.requests, found.complete, found.errors) == (3, 2, {"RESOURCE_EXHAUSTED": 1})
    assert (found.requests_per_s, found.tokens_per_s, found.prompt_tokens_per_s) == (0.2, 0.6, 3.0)
    assert found.ttft.p50 == pytest.approx(100) and found.ttft.p99 == pytest.approx(1000)
    assert found.itl.p99 == pytest.approx(2000) and found.e2e.p99 == pytest.approx(3100)
    assert found.late == pytest.approx(1 / 3)
    assert found.goodput is None


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 500}, [True, False]),
        ({"ttft": 1000}, [True, True]),
        ({"itl": 1999}, [True, False]),
        ({"tpot": 1100}, [True, True]),
        ({"tpot": 90}, [False, False]),
        ({"e2e": 1000, "ttft": 1}, [False, False]),
    ],
)
def test_an_answer_is_good_within_every_limit(limits: dict[str, float], good: list[bool]):
    assert [is_good(trace, limits) for trace in (FAST, SLOW)] == good
    assert not is_good(REFUSED, limits)


def test_goodput_counts_refusals():
    found = figures_of([LevelRun(Load(rate=1.0), 2.0, [FAST, SLOW, REFUSED])], {"ttft": 500})
    assert found.goodput == 0.5 and found.good_share == pytest.approx(1 / 3)


def test_a_level_without_an_answer():
    found = figures_of([LevelRun(Load(rate=1.0), 2.0, [REFUSED])], {"ttft": 500})
    assert found.complete == 0 and found.goodput == 0 and found.ttft == Percentiles()
