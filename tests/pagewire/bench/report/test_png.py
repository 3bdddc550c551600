"""Charts as PNG: lines are where their values are, in their colours."""

import io

from PIL import Image, ImageColor

from pagewire.bench.report.chart import HEIGHT, LIGHT, WIDTH, Axis, Chart, Point, Series
from pagewire.bench.report.png import png


def pixels(chart: Chart) -> Image.Image:
    return Image.open(io.BytesIO(png(chart))).convert("RGB")


def colour_at(image: Image.Image, at: Point) -> str:
    """The colour of the palette that is nearest to that of a pixel of the chart: smoothing mixes them."""
    found = image.getpixel((round(2 * at[0]), round(2 * at[1])))

    def distance(colour: str) -> int:
        return sum((a - b) ** 2 for a, b in zip(ImageColor.getrgb(colour), found, strict=True))

    return min((*LIGHT.lines, LIGHT.ink, LIGHT.soft, LIGHT.rule, LIGHT.paper), key=distance)


def test_a_chart():
    x, y = Axis.of_names("<clients>", ["1", "8", "64"]), Axis.from_zero("ms", 9.5)
    lines = [Series("p50", [(0, 0), (1, 5), (2, 10)]), Series("p99", [(0, 1), (1, 2), (2, 2)], marks=False)]
    chart = Chart("A & B", x, y, lines)
    image = pixels(chart)
    assert image.size == (2 * WIDTH, 2 * HEIGHT)
    for place, series in enumerate(lines):
        for at in chart.pixels(series)[not series.marks : 2]:  # the end of a line is half as wide
            assert colour_at(image, at) == LIGHT.lines[place]
    assert colour_at(image, (0, 0)) == LIGHT.paper


def test_words_are_drawn():
    """Title, ticks, labels of both axes and the legend leave ink in their places; an empty title does not."""
    axis = Axis.from_zero("ms", 1)
    places = {"title": (64, 0, 300, 20), "label": (0, 100, 20, 200), "below": (200, 282, 400, 300)}
    named = pixels(Chart("Title", axis, axis, []))
    bare = pixels(Chart("", Axis("", 0, 1, []), Axis("", 0, 1, []), []))
    for place in places.values():
        box = tuple(2 * each for each in place)
        assert len(named.crop(box).getcolors(1 << 16)) > 1 and len(bare.crop(box).getcolors(1 << 16)) == 1
