"""The charts of a load test."""

from collections.abc import Callable, Sequence

from pagewire_bench.figures import LevelFigures, at_rank
from pagewire_bench.load import Load
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.chart import LIGHT, Axis, Chart, Series

_MOST_POINTS = 200
"""Of a distribution."""
_MOST_LINES = len(LIGHT.lines)

Reading = Callable[[LevelFigures], float]


def charts(record: BenchRecord) -> list[Chart]:
    """Returns the charts, whose titles differ; the last, goodput, where there are limits."""
    loads = record.loads()
    figures = [record.figures(load) for load in loads]
    names = Axis.of_names(loads[0].axis, [f"{load.value:g}" for load in loads])

    def by_level(title: str, unit: str, readings: dict[str, Reading]) -> Chart:
        lines = [
            Series(name, [(place, reading(each)) for place, each in enumerate(figures)])
            for name, reading in readings.items()
        ]
        highest = max(value for line in lines for _, value in line.points)
        return Chart(title, names, Axis.from_zero(unit, highest), lines)

    found = [
        by_level(
            "Time to first token",
            "ms",
            {"p50": lambda f: f.ttft.p50, "p90": lambda f: f.ttft.p90, "p99": lambda f: f.ttft.p99},
        ),
        by_level(
            "Inter-token latency",
            "ms",
            {"p50": lambda f: f.itl.p50, "p90": lambda f: f.itl.p90, "p99": lambda f: f.itl.p99},
        ),
        by_level("Output", "tokens/s", {"tokens/s": lambda f: f.tokens_per_s}),
        _trade_off(figures),
        _distribution(record, loads),
    ]
    if record.goals:
        answers: dict[str, Reading] = {
            "complete": lambda f: f.requests_per_s,
            "within the limits": lambda f: f.goodput or 0.0,
        }
        found.append(by_level("Goodput", "requests/s", answers))
    return found


def _trade_off(figures: Sequence[LevelFigures]) -> Chart:
    points = [(each.tokens_per_s, each.tpot.p50) for each in figures]
    x, y = (max(values) for values in zip(*points, strict=True))
    title = "Throughput and time per output token"
    line = Series("median", points)
    return Chart(title, Axis.from_zero("tokens/s", x), Axis.from_zero("ms", y), [line])


def _distribution(record: BenchRecord, loads: Sequence[Load]) -> Chart:
    lines = []
    for load in loads[:_MOST_LINES]:
        runs = record.runs_of(load)
        values = sorted(1000 * trace.first for run in runs for trace in run.traces if not trace.error)
        steps = min(len(values), _MOST_POINTS)
        points = [(at_rank(values, percent), percent) for percent in _percents(steps)] if values else []
        lines.append(Series(f"{load.value:g}", points, marks=False))
    highest = max((x for line in lines for x, _ in line.points), default=1.0)
    shares = Axis("% of requests", 0, 100, [(each, f"{each}") for each in (0, 25, 50, 75, 100)])
    title = f"Time to first token, distribution by {loads[0].axis}"
    return Chart(title, Axis.from_zero("ms", highest), shares, lines)


def _percents(steps: int) -> list[int]:
    return sorted({round(100 * place / max(steps - 1, 1)) for place in range(steps)})
