"""A load test as one HTML file: no scripts, nothing from other hosts."""

from collections.abc import Callable, Sequence
from html import escape

from pagewire.bench.figures import LevelFigures, at_rank
from pagewire.bench.load import Load
from pagewire.bench.record import BenchRecord
from pagewire.bench.report.svg import NUM_COLOURS, Axis, Series, line_chart
from pagewire.bench.report.table import notes_of, row_of

_CSP = "default-src 'none'; style-src 'unsafe-inline'"
_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --rule: #d8dee4; --paper: #fff;
  --c0: #0b62c4; --c1: #b84a00; --c2: #187a3c; --c3: #8250df; --c4: #a01c5b; --c5: #5b6570; }
@media (prefers-color-scheme: dark) { :root {
  --ink: #e6edf3; --soft: #9aa4af; --rule: #343b44; --paper: #0f1318;
  --c0: #6cb0ff; --c1: #ff9a57; --c2: #5fd38a; --c3: #c3a2ff; --c4: #ff8cc0; --c5: #aab4be; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 1120px; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); gap: 1.5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--rule); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; } .about td { text-align: left; white-space: normal; }
figure { margin: 0; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font: 12px system-ui, sans-serif; }
svg .title { font-weight: 600; font-size: 14px; }
svg .tick, svg .label { fill: var(--soft); font-size: 11px; }
svg .grid { stroke: var(--rule); } svg .axis { stroke: var(--soft); }
svg .line { fill: none; stroke-width: 2; stroke: var(--c); } svg .dot { fill: var(--c); }
""" + "".join(f".c{place} {{ --c: var(--c{place}); }}\n" for place in range(NUM_COLOURS))
_MOST_POINTS = 200
"""Of a distribution."""

Reading = Callable[[LevelFigures], float]


def page(record: BenchRecord) -> str:
    """Returns the file. All text is escaped."""
    loads = record.loads()
    figures = [record.figures(load) for load in loads]
    title = escape(f"pagewire bench: {record.title}")
    head = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body>"
    )
    parts = [head, f"<h1>{title}</h1>", _table(record, loads, figures), '<h2>Plots</h2><div class="plots">']
    parts += [f"<figure>{plot}</figure>" for plot in plots(record, loads, figures)]
    return "\n".join([*parts, "</div>", _about(record), "</body></html>\n"])


def plots(record: BenchRecord, loads: Sequence[Load], figures: Sequence[LevelFigures]) -> list[str]:
    """Returns the charts."""
    names = Axis.of_names(loads[0].axis, [f"{load.value:g}" for load in loads])

    def by_level(title: str, unit: str, readings: dict[str, Reading]) -> str:
        lines = [
            Series(name, [(place, reading(each)) for place, each in enumerate(figures)])
            for name, reading in readings.items()
        ]
        highest = max(value for line in lines for _, value in line.points)
        return line_chart(title, names, Axis.from_zero(unit, highest), lines)

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


def _trade_off(figures: Sequence[LevelFigures]) -> str:
    points = [(each.tokens_per_s, each.tpot.p50) for each in figures]
    x, y = (max(values) for values in zip(*points, strict=True))
    title = "Throughput and time per output token"
    line = Series("median", points)
    return line_chart(title, Axis.from_zero("tokens/s", x), Axis.from_zero("ms", y), [line])


def _distribution(record: BenchRecord, loads: Sequence[Load]) -> str:
    lines = []
    for load in loads[:NUM_COLOURS]:
        runs = record.runs_of(load)
        values = sorted(1000 * trace.first for run in runs for trace in run.traces if not trace.error)
        steps = min(len(values), _MOST_POINTS)
        points = [(at_rank(values, percent), percent) for percent in _percents(steps)] if values else []
        lines.append(Series(f"{load.value:g}", points, marks=False))
    highest = max((x for line in lines for x, _ in line.points), default=1.0)
    shares = Axis("% of requests", 0, 100, [(each, f"{each}") for each in (0, 25, 50, 75, 100)])
    title = f"Time to first token, distribution by {loads[0].axis}"
    return line_chart(title, Axis.from_zero("ms", highest), shares, lines)


def _percents(steps: int) -> list[int]:
    return sorted({round(100 * place / max(steps - 1, 1)) for place in range(steps)})


def _table(record: BenchRecord, loads: Sequence[Load], figures: Sequence[LevelFigures]) -> str:
    head = ["load", "requests", "req/s", "tokens/s"]
    head += [f"{name} {rank}" for name in ("TTFT", "ITL", "E2E") for rank in ("p50", "p99")]
    if record.goals:
        head += ["goodput/s", "good"]
    rows = ["".join(f"<th>{cell}</th>" for cell in head)]
    for load, each in zip(loads, figures, strict=True):
        rows.append("".join(f"<td>{escape(cell)}</td>" for cell in [load.name, *row_of(each)]))
    body = "\n".join(f"<tr>{row}</tr>" for row in rows)
    notes = [
        f"<li>{escape(load.name)}: {escape(note)}</li>"
        for load, each in zip(loads, figures, strict=True)
        for note in notes_of(each)
    ]
    goals = ", ".join(f"{name} &le; {limit:g} ms" for name, limit in record.goals.items())
    legend = "<p>Latencies in ms." + (f" Good: {goals}." if goals else "") + "</p>"
    return f'<div class="scroll"><table>{body}</table></div>{legend}<ul>{"".join(notes)}</ul>'


def _about(record: BenchRecord) -> str:
    rows = "".join(
        f"<tr><td>{escape(str(name))}</td><td>{escape(str(value))}</td></tr>"
        for name, value in record.about.items()
    )
    return f'<h2>Settings</h2><table class="about">{rows}</table>'
