"""Line charts as SVG."""

from html import escape

from pagewire.bench.report.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LEGEND_MARK,
    LIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Series,
)

NUM_COLOURS = len(LIGHT.lines)
_FILE_STYLE = (
    f"svg {{ background: {LIGHT.paper}; }} text {{ fill: {LIGHT.ink}; font: 12px sans-serif; }}"
    ".title { font-weight: 600; font-size: 14px; }"
    f".tick, .label {{ fill: {LIGHT.soft}; font-size: 11px; }}"
    f".grid {{ stroke: {LIGHT.rule}; }} .axis {{ stroke: {LIGHT.soft}; }}"
    ".line { fill: none; stroke-width: 2; }"
) + "".join(
    f".line.c{place} {{ stroke: {colour}; }} .dot.c{place} {{ fill: {colour}; }}"
    for place, colour in enumerate(LIGHT.lines)
)


def svg_file(chart: Chart) -> str:
    """Returns a file of its own, in light colours."""
    size = f'xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}"'
    start, rest = svg(chart).split(">", 1)
    return f"{start} {size}>\n<style>{_FILE_STYLE}</style>{rest}\n"


def svg(chart: Chart) -> str:
    """Returns an <svg> element. Colours and fonts are classes, which the page that holds it defines."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(chart.title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(chart.title)}</text>',
        *_axes(chart.x, chart.y),
    ]
    for place, each in enumerate(chart.series):
        parts += _line(chart, each, place % NUM_COLOURS)
    return "\n".join([*parts, *_legend(chart), "</svg>"])


def _axes(x: Axis, y: Axis) -> list[str]:
    parts = []
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value, label in y.ticks:
        at = y.at(value, bottom, TOP)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{escape(label)}</text>'
        )
    for value, label in x.ticks:
        at = x.at(value, LEFT, right)
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(label)}</text>'
        )
    middle = (LEFT + right) / 2
    parts.append(f'<line class="axis" x1="{LEFT}" y1="{bottom}" x2="{right}" y2="{bottom}"/>')
    parts.append(
        f'<text class="label" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x.label)}</text>'
    )
    height = (TOP + bottom) / 2
    turned = f'transform="rotate(-90 14 {height})"'
    parts.append(
        f'<text class="label" x="14" y="{height}" text-anchor="middle" {turned}>{escape(y.label)}</text>'
    )
    return parts


def _line(chart: Chart, series: Series, colour: int) -> list[str]:
    pixels = chart.pixels(series)
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in pixels)
    parts = [f'<polyline class="line c{colour}" points="{joined}"/>']
    if series.marks:
        for (a, b), (_, value) in zip(pixels, series.points, strict=True):
            text = escape(f"{series.name}: {value:.4g}")
            dot = f'class="dot c{colour}" cx="{a:.1f}" cy="{b:.1f}" r="4"'
            parts.append(f"<circle {dot}><title>{text}</title></circle>")
    return parts


def _legend(chart: Chart) -> list[str]:
    parts = []
    for place, (at, each) in enumerate(chart.legend()):
        mark = f'x1="{at:.0f}" y1="30" x2="{at + LEGEND_MARK:.0f}" y2="30"'
        parts.append(f'<line class="line c{place % NUM_COLOURS}" {mark}/>')
        parts.append(f'<text class="tick" x="{at + LEGEND_MARK + 4:.0f}" y="34">{escape(each.name)}</text>')
    return parts
