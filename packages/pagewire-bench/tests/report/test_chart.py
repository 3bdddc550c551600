"""Axes of charts, names of their files, and lines that are where their values are."""

import xml.etree.ElementTree as ET

import pytest

from bench_fakes import made_record
from pagewire_bench.report.chart import (
    BOTTOM,
    DARK,
    HEIGHT,
    LEFT,
    LIGHT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    Chart,
    Series,
    svg,
    svg_file,
)
from pagewire_bench.report.charts import charts


@pytest.mark.parametrize(("highest", "last"), [(0.0, 1), (9.5, 10), (10, 10), (0.03, 0.03), (1234, 1250)])
def test_axes_have_round_ticks_up_to_the_highest_value(highest: float, last: float):
    axis = Axis.from_zero("", highest)
    assert axis.high == pytest.approx(last) and axis.high >= highest
    assert 2 <= len(axis.ticks) <= 7


def test_a_name_of_a_file_has_letters_and_hyphens_alone():
    axis = Axis.from_zero("", 1)
    assert (
        Chart("Time to first token, by ../level", axis, axis, []).file_name == "time-to-first-token-by-level"
    )


def test_charts_of_a_load_test_have_names_of_their_own():
    found = charts(made_record())
    assert len({chart.file_name for chart in found}) == len(found) == 6
    assert len(LIGHT.lines) == len(DARK.lines)


def test_a_chart():
    x, y = Axis.of_names("<clients>", ["1", "8", "64"]), Axis.from_zero("ms", 9.5)
    lines = [Series("p50", [(0, 0), (1, 5), (2, 10)]), Series("p99", [(0, 1), (2, 2)])]
    root = ET.fromstring(svg(Chart("A & B", x, y, lines)))
    texts = [element.text for element in root.iter("text")]
    assert {"A & B", "<clients>", "ms", "p50", "p99", "1", "8", "64", "10"} <= set(texts)
    first, second = root.iter("polyline")
    pixels = [tuple(map(float, pair.split(","))) for pair in first.attrib["points"].split()]
    middle = (LEFT + WIDTH - RIGHT) / 2
    assert pixels[1] == (middle, (TOP + HEIGHT - BOTTOM) / 2)
    assert [y for _, y in pixels] == [HEIGHT - BOTTOM, (TOP + HEIGHT - BOTTOM) / 2, TOP]
    assert len(list(root.iter("circle"))) == 5 and second.attrib["class"] != first.attrib["class"]


def test_a_file_of_its_own():
    chart = Chart("A > B", Axis.from_zero("s", 1), Axis.from_zero("ms", 1), [Series("p50", [(0, 0), (1, 1)])])
    root = ET.fromstring(svg_file(chart))
    assert root.tag == "{http://www.w3.org/2000/svg}svg" and root.attrib["width"] == str(WIDTH)
    style = root.find("{http://www.w3.org/2000/svg}style")
    assert (
        style is not None
        and ".line.c0 { stroke: #" in (style.text or "")
        and "var(" not in (style.text or "")
    )
