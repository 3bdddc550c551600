"""The levels of a sweep and the limits of goodput, as flags say them; and when requests are due."""

import itertools
import random
import statistics

import pytest

from pagewire.flags import UsageError
from pagewire_bench.load import Load, due_times, read_goals, read_loads


def test_levels():
    assert read_loads("", "1,8,64") == [Load(concurrency=1), Load(concurrency=8), Load(concurrency=64)]
    assert read_loads("0.5,2", "") == [Load(rate=0.5), Load(rate=2.0)]
    assert [load.name for load in (Load(rate=0.5), Load(concurrency=8))] == ["0.5 requests/s", "8 concurrent"]


@pytest.mark.parametrize("text", ["", "x", "1,,2", "0", "-1", "nan", "inf", "2,2", "1e9"])
def test_wrong_levels_name_their_flag(text: str):
    with pytest.raises(UsageError, match="--concurrency"):
        read_loads("", text)
    if text:
        with pytest.raises(UsageError, match="--rate"):
            read_loads(text, "")


def test_half_a_client_is_refused():
    with pytest.raises(UsageError, match="integers"):
        read_loads("", "1.5")


def test_goals():
    assert read_goals("") == {}
    assert read_goals("ttft=200,itl=50.5") == {"ttft": 200.0, "itl": 50.5}


@pytest.mark.parametrize(
    "text", ["ttft", "ttft=", "ttft=x", "ttft=0", "ttft=nan", "x=1", "ttft=1,ttft=2", ","]
)
def test_wrong_goals_say_what_there_is(text: str):
    with pytest.raises(UsageError, match="ttft, itl, tpot, e2e"):
        read_goals(text)


def test_poisson_arrivals():
    """The rate and the variance are those of a Poisson process."""
    times = list(itertools.islice(due_times(50.0, random.Random(1)), 5000))
    assert times[-1] == pytest.approx(100, rel=0.05)
    counts = [sum(1 for at in times if second <= at < second + 1) for second in range(90)]
    assert statistics.variance(counts) == pytest.approx(50, rel=0.4)


def test_the_seed_decides_and_constant_arrivals_do_not_vary():
    first, second = (list(itertools.islice(due_times(3, random.Random("a")), 9)) for _ in range(2))
    assert first == second
    assert list(itertools.islice(due_times(4, random.Random(0), "constant"), 3)) == [0.25, 0.5, 0.75]
