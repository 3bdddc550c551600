"""The table of a load test, for terminals."""

from collections.abc import Sequence

from pagewire_bench.figures import LevelFigures, Percentiles
from pagewire_bench.record import BenchRecord

_FEW = 100
_WIDE = 100.0


def table_lines(record: BenchRecord) -> list[str]:
    """Returns a line per level, then what the lines leave out: errors, late requests, few samples."""
    loads = record.loads()
    figures = [record.figures(load) for load in loads]
    head = ["load", "requests", "req/s", "tokens/s", "TTFT p50", "p99", "ITL p50", "p99", "E2E p50", "p99"]
    if record.goals:
        head += ["goodput/s", "good"]
    rows = [[load.name, *row_of(each)] for load, each in zip(loads, figures, strict=True)]
    lines = aligned([head, *rows])
    lines.append("latencies in ms")
    if record.goals:
        lines.append("good: " + ", ".join(f"{name} <= {limit:g} ms" for name, limit in record.goals.items()))
    for load, each in zip(loads, figures, strict=True):
        lines += [f"{load.name}: {note}" for note in notes_of(each)]
    return lines


def row_of(figures: LevelFigures) -> list[str]:
    """Returns the cells of a level."""
    cells = [f"{figures.complete}", f"{figures.requests_per_s:.2f}", number(figures.tokens_per_s)]
    for spread in (figures.ttft, figures.itl, figures.e2e):
        cells += _pair(spread, figures.complete)
    if figures.goodput is not None and figures.good_share is not None:
        cells += [f"{figures.goodput:.2f}", f"{figures.good_share:.0%}"]
    return cells


def notes_of(figures: LevelFigures) -> list[str]:
    """Returns what a reader of the figures has to know, a line each."""
    found = [f"{count} failed: {kind}" for kind, count in figures.errors.items()]
    if figures.late >= 0.01:
        found.append(
            f"{figures.late:.0%} of the requests were sent late: this machine is too slow for the load"
        )
    if figures.complete < _FEW:
        found.append(f"p99 is of {figures.complete} requests: nearly the greatest")
    return found


def number(value: float) -> str:
    """Returns a figure with about three significant digits."""
    return f"{value:,.0f}" if value >= _WIDE else f"{value:.1f}" if value >= 1 else f"{value:.2f}"


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns one line per row: the first column left-aligned, the others right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _pair(spread: Percentiles, complete: int) -> list[str]:
    return [number(spread.p50), number(spread.p99)] if complete else ["-", "-"]
