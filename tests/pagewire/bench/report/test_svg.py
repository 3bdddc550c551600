"""Charts are well-formed, and their lines are where their values are."""

import xml.etree.ElementTree as ET

from pagewire.bench.report.chart import BOTTOM, HEIGHT, LEFT, RIGHT, TOP, WIDTH, Axis, Chart, Series
from pagewire.bench.report.svg import svg, svg_file


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
