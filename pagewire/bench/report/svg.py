"""Line charts as SVG. Colours and fonts are classes, which the page that holds the charts defines."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 520, 300
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 44, 46
NUM_COLOURS = 6
_NUM_TICKS = 5
_LEGEND_STEP = 15

Point = tuple[float, float]
Tick = tuple[float, str]


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


def line_chart(title: str, x: Axis, y: Axis, series: Sequence[Series]) -> str:
    """Returns an <svg> element with a legend, if there is more than one line."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>',
        *_axes(x, y),
    ]
    for place, each in enumerate(series):
        parts += _line(each, place % NUM_COLOURS, x, y)
    if len(series) > 1:
        parts += _legend(series)
    return "\n".join([*parts, "</svg>"])


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


def _line(series: Series, colour: int, x: Axis, y: Axis) -> list[str]:
    pixels = [(x.at(a, LEFT, WIDTH - RIGHT), y.at(b, HEIGHT - BOTTOM, TOP)) for a, b in series.points]
    joined = " ".join(f"{a:.1f},{b:.1f}" for a, b in pixels)
    parts = [f'<polyline class="line c{colour}" points="{joined}"/>']
    if series.marks:
        for (a, b), (_, value) in zip(pixels, series.points, strict=True):
            text = escape(f"{series.name}: {value:.4g}")
            dot = f'class="dot c{colour}" cx="{a:.1f}" cy="{b:.1f}" r="4"'
            parts.append(f"<circle {dot}><title>{text}</title></circle>")
    return parts


def _legend(series: Sequence[Series]) -> list[str]:
    parts, at = [], float(LEFT)
    for place, each in enumerate(series):
        colour = place % NUM_COLOURS
        parts.append(f'<line class="line c{colour}" x1="{at:.0f}" y1="30" x2="{at + 14:.0f}" y2="30"/>')
        parts.append(f'<text class="tick" x="{at + 18:.0f}" y="34">{escape(each.name)}</text>')
        at += 18 + _LEGEND_STEP + 6.2 * len(each.name)
    return parts


def _nice_step(rough: float) -> float:
    """Returns the least of 1, 2, 2.5 and 5 times a power of ten that is not below `rough`."""
    if rough <= 0 or not math.isfinite(rough):
        return 1.0
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))
