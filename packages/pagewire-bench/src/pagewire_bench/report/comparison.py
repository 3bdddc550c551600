"""Two load tests side by side: the ratio of each figure, with its confidence interval."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pagewire.flags import UsageError
from pagewire_bench.bootstrap import (
    Interval,
    by_request,
    compare,
    ends_by_slice,
    mean,
    percentile_of,
    tokens_by_slice,
)
from pagewire_bench.driver import LevelRun
from pagewire_bench.figures import is_good
from pagewire_bench.load import Load
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.table import aligned, number
from pagewire_bench.trace import Trace

_HEAD = ["", "A", "B", "B / A", "95 % interval", ""]
FEWEST_REQUESTS = {50: 10, 90: 50, 99: 500}
"""Complete answers on each side for which a percentile is compared: below, samples drawn again say little of
what is beyond the greatest value."""
_SETTINGS = ("api", "prompts", "input_len", "output_len", "prefix_len", "workload", "arrivals", "temperature")


@dataclass(frozen=True)
class ComparedFigure:
    """One figure of one level. interval: None where it cannot be compared. is_better: B is better with 95 %
    confidence; None if the interval contains 1."""

    name: str
    interval: Interval | None
    is_better: bool | None


def compared(first: BenchRecord, second: BenchRecord) -> list[tuple[Load, list[ComparedFigure]]]:
    """Returns the levels that both have, with their figures. Raises UsageError if there is none."""
    loads = [load for load in first.loads() if load in second.loads()]
    if not loads:
        names = " and ".join(", ".join(load.name for load in each.loads()) for each in (first, second))
        raise UsageError("the two have no level in common", names)
    return [(load, _level(first.runs_of(load), second.runs_of(load), first.goals)) for load in loads]


def differences(first: BenchRecord, second: BenchRecord) -> list[str]:
    """Returns the settings in which the two differ, a line each."""
    found = [
        f"{name}: {first.about.get(name)} and {second.about.get(name)}"
        for name in _SETTINGS
        if first.about.get(name) != second.about.get(name)
    ]
    return found + ([f"goodput: {first.goals} and {second.goals}"] if first.goals != second.goals else [])


def comparison_lines(first: BenchRecord, second: BenchRecord) -> list[str]:
    """Returns a table per level."""
    lines = [f"A: {first.title}", f"B: {second.title}"]
    lines += [f"they differ in {each}" for each in differences(first, second)]
    for load, figures in compared(first, second):
        lines += ["", load.name, *aligned([_HEAD, *map(_row, figures)])]
    return lines


def _level(a: Sequence[LevelRun], b: Sequence[LevelRun], goals: Mapping[str, float]) -> list[ComparedFigure]:
    found = []
    latencies: dict[str, Callable[[Trace], Sequence[float]]] = {
        "TTFT": lambda trace: [1000 * trace.first],
        "ITL": lambda trace: [1000 * gap for gap in trace.gaps()],
        "E2E": lambda trace: [1000 * trace.latency],
    }
    for name, values in latencies.items():
        for percent, fewest in FEWEST_REQUESTS.items():
            interval = None
            if all(sum(not trace.error for run in side for trace in run.traces) >= fewest for side in (a, b)):
                interval = compare(by_request(a, values), by_request(b, values), percentile_of(percent))
            found.append(_figure(f"{name} p{percent} ms", interval, is_less_better=True))
    found.append(_figure("tokens/s", compare(tokens_by_slice(a), tokens_by_slice(b), mean)))
    rates: dict[str, Callable[[Trace], bool]] = {"requests/s": lambda trace: not trace.error}
    if goals:
        rates["goodput/s"] = lambda trace: is_good(trace, goals)
    for name, counts in rates.items():
        found.append(_figure(name, compare(ends_by_slice(a, counts), ends_by_slice(b, counts), mean)))
    return found


def _figure(name: str, interval: Interval | None, *, is_less_better: bool = False) -> ComparedFigure:
    better = None
    if interval is not None and interval.differs:
        better = (interval.ratio < 1) == is_less_better
    return ComparedFigure(name, interval, better)


def _row(figure: ComparedFigure) -> list[str]:
    found = figure.interval
    if found is None:
        return [figure.name, "-", "-", "-", "-", "too few requests"]
    verdict = {True: "better", False: "worse", None: "no difference shown"}[figure.is_better]
    interval = f"{found.low:.3f}..{found.high:.3f}"
    return [figure.name, number(found.first), number(found.second), f"{found.ratio:.3f}", interval, verdict]
