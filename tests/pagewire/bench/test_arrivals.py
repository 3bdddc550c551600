"""Poisson arrivals have the rate and the variance of a Poisson process; constant ones have none."""

import itertools
import random
import statistics

import pytest

from pagewire.bench.arrivals import due_times


def test_poisson_arrivals():
    times = list(itertools.islice(due_times(50.0, random.Random(1)), 5000))
    assert times[-1] == pytest.approx(100, rel=0.05)
    counts = [sum(1 for at in times if second <= at < second + 1) for second in range(90)]
    assert statistics.variance(counts) == pytest.approx(50, rel=0.4)


def test_the_seed_decides_and_constant_arrivals_do_not_vary():
    first, second = (list(itertools.islice(due_times(3, random.Random("a")), 9)) for _ in range(2))
    assert first == second
    assert list(itertools.islice(due_times(4, random.Random(0), "constant"), 3)) == [0.25, 0.5, 0.75]
