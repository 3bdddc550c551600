"""A load test as one HTML file: no scripts, nothing from other hosts."""

from collections.abc import Sequence
from html import escape

from pagewire_bench.figures import LevelFigures
from pagewire_bench.load import Load
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.chart import DARK, LIGHT, NUM_COLOURS, Palette, svg
from pagewire_bench.report.charts import charts
from pagewire_bench.report.table import notes_of, row_of

_CSP = "default-src 'none'; style-src 'unsafe-inline'"


def _variables(palette: Palette) -> str:
    colours = {f"c{place}": line for place, line in enumerate(palette.lines)}
    named = {
        "ink": palette.ink,
        "soft": palette.soft,
        "rule": palette.rule,
        "paper": palette.paper,
        **colours,
    }
    return " ".join(f"--{name}: {colour};" for name, colour in named.items())


_STYLE = (
    (
        f":root {{ color-scheme: light dark; {_variables(LIGHT)} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {_variables(DARK)} }} }}\n"
    )
    + """
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
"""
    + "".join(f".c{place} {{ --c: var(--c{place}); }}\n" for place in range(NUM_COLOURS))
)


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
    parts += [f"<figure>{svg(chart)}</figure>" for chart in charts(record)]
    return "\n".join([*parts, "</div>", _about(record), "</body></html>\n"])


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
