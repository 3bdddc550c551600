"""Confidence intervals by the bootstrap (Efron 1979): figures of two runs, drawn again with replacement.

What is drawn is what is independent: whole requests, with all their tokens, since those of one request
depend on each other. Of throughput, slices of time are drawn. Where a level ran several times, runs are drawn
first, then the requests within each (the two stages of a clustered sample), so that what differs from run to
run widens the interval.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pagewire_bench.driver import LevelRun
from pagewire_bench.figures import at_rank
from pagewire_bench.trace import Trace

SLICES = 20
"""Of a run, for throughput."""
MAX_WORK = 4_000_000
"""Values that are sorted in all for one interval: beyond, fewer samples are drawn."""
FEWEST_SAMPLES, MOST_SAMPLES = 200, 500
_LOW, _HIGH = 0.025, 0.975

Unit = Sequence[float]
"""The values of one request, or of one slice."""
Statistic = Callable[[list[float]], float]


@dataclass(frozen=True)
class Interval:
    """A figure of A, of B, their ratio B / A, and the 95 % confidence interval of the ratio."""

    first: float
    second: float
    ratio: float
    low: float
    high: float

    @property
    def differs(self) -> bool:
        """True if 1 is outside the interval."""
        return not self.low <= 1 <= self.high


def percentile_of(percent: int) -> Statistic:
    """Returns the statistic that is a percentile."""
    return lambda values: at_rank(sorted(values), percent)


def mean(values: list[float]) -> float:
    """Returns the mean."""
    return sum(values) / len(values)


def compare(
    first: Sequence[Sequence[Unit]], second: Sequence[Sequence[Unit]], statistic: Statistic, seed: int = 0
) -> Interval | None:
    """Returns the interval of a ratio. first, second: the units of each run. None where a side has no values,
    or the figure of the first is 0."""
    sides = [[[unit for unit in run if unit] for run in side] for side in (first, second)]
    sides = [[run for run in side if run] for side in sides]
    if not all(sides):
        return None
    figures = [statistic(_values(side)) for side in sides]
    if not figures[0]:
        return None
    draw = random.Random(seed)
    ratios = []
    for _ in range(_num_samples(sides)):
        a, b = (statistic(_values(_resample(side, draw))) for side in sides)
        if a:
            ratios.append(b / a)
    ratios.sort()
    low, high = (ratios[round(part * (len(ratios) - 1))] for part in (_LOW, _HIGH))
    return Interval(figures[0], figures[1], figures[1] / figures[0], low, high)


def by_request(runs: Sequence[LevelRun], values: Callable[[Trace], Unit]) -> list[list[Unit]]:
    """Returns the units of figures of complete answers."""
    return [[values(trace) for trace in run.traces if not trace.error] for run in runs]


def tokens_by_slice(runs: Sequence[LevelRun]) -> list[list[Unit]]:
    """Returns the units of throughput: tokens per second in each slice of a run."""
    return [_by_slice(run, (each for trace in run.traces for each in trace.arrivals)) for run in runs]


def ends_by_slice(runs: Sequence[LevelRun], is_counted: Callable[[Trace], bool]) -> list[list[Unit]]:
    """Returns the units of rates of requests: those that meet the condition, per second in each slice."""
    return [_by_slice(run, ((each.ended, 1) for each in run.traces if is_counted(each))) for run in runs]


def _by_slice(run: LevelRun, events: Iterable[tuple[float, int]]) -> list[Unit]:
    length = run.seconds / SLICES
    counts = [0.0] * SLICES
    for at, count in events:
        counts[min(int(at / length), SLICES - 1)] += count / length
    return [[count] for count in counts]


def _values(side: Sequence[Sequence[Unit]]) -> list[float]:
    return [value for run in side for unit in run for value in unit]


def _resample(side: Sequence[Sequence[Unit]], draw: random.Random) -> list[list[Unit]]:
    return [draw.choices(run, k=len(run)) for run in draw.choices(side, k=len(side))]


def _num_samples(sides: Sequence[Sequence[Sequence[Unit]]]) -> int:
    work = sum(len(_values(side)) for side in sides)
    return max(FEWEST_SAMPLES, min(MOST_SAMPLES, MAX_WORK // work))
