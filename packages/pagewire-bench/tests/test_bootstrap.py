"""Confidence intervals: they contain the truth as often as they say, and their width is that of the data."""

import random

from pagewire_bench.bootstrap import (
    SLICES,
    by_request,
    compare,
    ends_by_slice,
    mean,
    percentile_of,
    tokens_by_slice,
)
from pagewire_bench.driver import LevelRun
from pagewire_bench.load import Load
from pagewire_bench.trace import Trace

Runs = list[list[list[float]]]


def sample(draw: random.Random, factor: float, size: int = 30) -> Runs:
    return [[[factor * draw.lognormvariate(0, 0.3)] for _ in range(size)]]


def test_intervals_cover_the_truth():
    """About 24 of 25 intervals of 95 % contain the true ratio."""
    draw = random.Random(5)
    found = [compare(sample(draw, 1.0), sample(draw, 1.5), mean, seed) for seed in range(25)]
    assert all(each is not None for each in found)
    assert sum(each.low <= 1.5 <= each.high for each in found if each) >= 20
    assert sum(each.differs for each in found if each) >= 22


def test_equal_services_seldom_differ():
    draw = random.Random(6)
    found = [compare(sample(draw, 1.0), sample(draw, 1.0), percentile_of(50), seed) for seed in range(15)]
    assert sum(each.differs for each in found if each) <= 3


def test_tokens_of_one_request_count_as_one_draw():
    """Thirty requests with ten equal gaps each say no more than thirty gaps."""
    draw = random.Random(7)
    single, many = sample(draw, 1.0), sample(draw, 1.0)
    repeated = [[[unit[0]] * 10 for unit in run] for run in single]
    others = [[[unit[0]] * 10 for unit in run] for run in many]
    narrow, wide = compare(single, many, mean), compare(repeated, others, mean)
    assert narrow and wide
    assert abs((narrow.high - narrow.low) - (wide.high - wide.low)) < 0.2 * (narrow.high - narrow.low)


def test_runs_that_differ_widen_the_interval():
    steady = [[[1.0 + 0.01 * place] for place in range(20)]] * 4
    uneven = [
        [[factor * unit[0]] for unit in run] for factor, run in zip((0.5, 1, 1, 1.5), steady, strict=True)
    ]
    alike, differing = compare(steady, steady, mean), compare(uneven, uneven, mean)
    assert alike and differing
    assert differing.high - differing.low > 5 * (alike.high - alike.low)


def test_nothing_is_compared_with_nothing():
    assert compare([[]], sample(random.Random(1), 1.0), mean) is None
    assert compare([[[0.0]]], [[[1.0]]], mean) is None


def test_units_of_a_run():
    traces = [Trace(0.0, 0.0, [(1.0, 2), (9.99, 1)], ended=10.0), Trace(0.0, error="x", ended=0.1)]
    run = LevelRun(Load(rate=1.0), 10.0, traces)
    (slices,) = tokens_by_slice([run])
    assert len(slices) == SLICES and slices[2] == [4.0] and slices[-1] == [2.0]
    (ends,) = ends_by_slice([run], lambda trace: not trace.error)
    assert sum(each[0] for each in ends) == 2.0 and ends[-1] == [2.0]
    assert by_request([run], lambda trace: trace.gaps()) == [[[8.99]]]
