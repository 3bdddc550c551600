"""Line charts as PNG, by Pillow (the extra `bench`), in light colours."""

import io
from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from pagewire.bench.report.chart import (
    BOTTOM,
    HEIGHT,
    LEFT,
    LEGEND_MARK,
    LIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Chart,
    Point,
)

SCALE = 2
"""Pixels of the file for a pixel of the chart."""
_SMOOTH = 2
"""Pillow draws lines without smoothing: the drawing is larger than the file."""


def png(chart: Chart) -> bytes:
    """Returns the file."""
    canvas = _Canvas()
    canvas.text((LEFT, 16), chart.title, 14, LIGHT.ink, "ls")
    _axes(canvas, chart)
    for place, series in enumerate(chart.series):
        colour, pixels = _colour(place), chart.pixels(series)
        canvas.line(pixels, colour, 2)
        for pixel in pixels if series.marks else ():
            canvas.dot(pixel, 4, colour)
    for place, (at, series) in enumerate(chart.legend()):
        canvas.line([(at, 30), (at + LEGEND_MARK, 30)], _colour(place), 2)
        canvas.text((at + LEGEND_MARK + 4, 34), series.name, 11, LIGHT.soft, "ls")
    return canvas.file()


def _colour(place: int) -> str:
    return LIGHT.lines[place % len(LIGHT.lines)]


def _axes(canvas: "_Canvas", chart: Chart) -> None:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    for value, label in chart.y.ticks:
        at = chart.y.at(value, bottom, TOP)
        canvas.line([(LEFT, at), (right, at)], LIGHT.rule, 1)
        canvas.text((LEFT - 6, at + 4), label, 11, LIGHT.soft, "rs")
    for value, label in chart.x.ticks:
        canvas.text((chart.x.at(value, LEFT, right), bottom + 16), label, 11, LIGHT.soft, "ms")
    canvas.line([(LEFT, bottom), (right, bottom)], LIGHT.soft, 1)
    canvas.text(((LEFT + right) / 2, HEIGHT - 8), chart.x.label, 11, LIGHT.soft, "ms")
    canvas.upward_text((14, (TOP + bottom) / 2), chart.y.label, 11, LIGHT.soft)


class _Canvas:
    """A drawing in pixels of the chart."""

    _FACTOR = SCALE * _SMOOTH

    def __init__(self) -> None:
        self._image = Image.new("RGB", (WIDTH * self._FACTOR, HEIGHT * self._FACTOR), LIGHT.paper)
        self._draw = ImageDraw.Draw(self._image)

    def line(self, points: Sequence[Point], colour: str, width: int) -> None:
        """Joins points."""
        self._draw.line([self._at(each) for each in points], colour, width * self._FACTOR, joint="curve")

    def dot(self, centre: Point, radius: int, colour: str) -> None:
        """Fills a circle."""
        self._draw.circle(self._at(centre), radius * self._FACTOR, colour)

    def text(self, at: Point, text: str, size: int, colour: str, anchor: str) -> None:
        """Writes a line. anchor: which point of the text is `at`, as in Pillow."""
        self._draw.text(self._at(at), text, colour, self._font(size), anchor)

    def upward_text(self, middle: Point, text: str, size: int, colour: str) -> None:
        """Writes a line from below to above; `middle` is on its baseline."""
        left, top, right, bottom = (round(each) for each in self._font(size).getbbox(text, anchor="ls"))
        mask = Image.new("L", (max(right - left, 1), max(bottom - top, 1)))
        ImageDraw.Draw(mask).text((-left, -top), text, 255, self._font(size), "ls")
        turned = mask.rotate(90, expand=True)
        x, y = (round(each) for each in self._at(middle))
        self._image.paste(colour, (x + top, y - turned.height // 2), turned)

    def file(self) -> bytes:
        """Returns the drawing as PNG."""
        image = self._image.resize((WIDTH * SCALE, HEIGHT * SCALE), Image.Resampling.LANCZOS)
        written = io.BytesIO()
        image.save(written, "PNG", optimize=True)
        return written.getvalue()

    def _at(self, point: Point) -> Point:
        return point[0] * self._FACTOR, point[1] * self._FACTOR

    def _font(self, size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
        return ImageFont.load_default(size * self._FACTOR)
