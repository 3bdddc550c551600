"""Line charts as SVG: axes, lines, and where they are, in pixels."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 44, 46
_NUM_TICKS = 5
LEGEND_MARK = 14
"""Length of the line in front of a name."""
_LEGEND_STEP = 15
_LETTER = 6.2

Point = tuple[float, float]
Tick = tuple[float, str]


@dataclass(frozen=True)
class Palette:
    """Colours of text, of labels, of the grid and of the ground; and those of lines, in order."""

    ink: str
    soft: str
    rule: str
    paper: str
    lines: tuple[str, ...]


LIGHT = Palette(
    "#1b1f24",
    "#57606a",
    "#d8dee4",
    "#ffffff",
    ("#0b62c4", "#b84a00", "#187a3c", "#8250df", "#a01c5b", "#5b6570"),
)
DARK = Palette(
    "#e6edf3",
    "#9aa4af",
    "#343b44",
    "#0f1318",
    ("#6cb0ff", "#ff9a57", "#5fd38a", "#c3a2ff", "#ff8cc0", "#aab4be"),
)


@dataclass(frozen=True)
class Series:
    """A line. points: (x, y), in the order in which they are joined. marks: a dot at each point."""

    name: str
    points: Sequence[Point]
    marks: bool = True


@dataclass(frozen=True)
class Axis:
    """A linear axis. ticks: (value, label)."""

    label: str
    low: float
    high: float
    ticks: Sequence[Tick]

    @classmethod
    def from_zero(cls, label: str, highest: float) -> "Axis":
        """Returns an axis with round ticks from 0 to at least `highest`."""
        step = _nice_step(highest / _NUM_TICKS)
        count = max(math.ceil(highest / step - 1e-9), 1)
        return cls(label, 0.0, count * step, [(i * step, f"{i * step:g}") for i in range(count + 1)])

    @classmethod
    def of_names(cls, label: str, names: Sequence[str]) -> "Axis":
        """Returns an axis on which the name of index i is at i."""
        return cls(label, -0.5, len(names) - 0.5, list(enumerate(names)))

    def at(self, value: float, start: float, end: float) -> float:
        """Returns where a value is between two pixels."""
        return start + (value - self.low) / (self.high - self.low) * (end - start)


@dataclass(frozen=True)
class Chart:
    """A chart of WIDTH x HEIGHT pixels. It has a legend if there is more than one line."""

    title: str
    x: Axis
    y: Axis
    series: Sequence[Series]

    @property
    def file_name(self) -> str:
        """Its title, as the name of a file without a suffix."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    def pixels(self, series: Series) -> list[Point]:
        """Returns where the points of one line are."""
        return [
            (self.x.at(a, LEFT, WIDTH - RIGHT), self.y.at(b, HEIGHT - BOTTOM, TOP)) for a, b in series.points
        ]

    def legend(self) -> Iterator[tuple[float, Series]]:
        """Yields the entries of the legend, each with where it begins."""
        at = float(LEFT)
        for each in self.series if len(self.series) > 1 else ():
            yield at, each
            at += LEGEND_MARK + 4 + _LEGEND_STEP + _LETTER * len(each.name)


def _nice_step(rough: float) -> float:
    """Returns the least of 1, 2, 2.5 and 5 times a power of ten that is not below `rough`."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


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
