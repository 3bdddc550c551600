"""Charts are well-formed, and their lines are where their values are."""

import xml.etree.ElementTree as ET

import pytest

from pagewire.bench.report.svg import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Series, line_chart


def test_a_chart():
    x, y = Axis.of_names("<clients>", ["1", "8", "64"]), Axis.from_zero("ms", 9.5)
    text = line_chart(
        "A & B", x, y, [Series("p50", [(0, 0), (1, 5), (2, 10)]), Series("p99", [(0, 1), (2, 2)])]
    )
    root = ET.fromstring(text)
    texts = [element.text for element in root.iter("text")]
    assert {"A & B", "<clients>", "ms", "p50", "p99", "1", "8", "64", "10"} <= set(texts)
    first, second = root.iter("polyline")
    pixels = [tuple(map(float, pair.split(","))) for pair in first.attrib["points"].split()]
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert pixels[1] == (middle, (TOP + HEIGHT - BOTTOM) / 2)
    assert [y for _, y in pixels] == [HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2, TOP]
    assert len(list(root.iter("circle"))) == 5 and second.attrib["class"] != first.attrib["class"]


@pytest.mark.parametrize(("highest", "last"), [(0.0, 1), (9.5, 10), (10, 10), (0.03, 0.03), (1234, 1250)])
def test_axes_have_round_ticks_up_to_the_highest_value(highest: float, last: float):
    axis = Axis.from_zero("", highest)
    assert axis.high == pytest.approx(last) and axis.high >= highest
    assert 2 <= len(axis.ticks) <= 7
