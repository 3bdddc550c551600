"""Axes of charts, and names of their files."""

import pytest

from pagewire.bench.report.chart import DARK, LIGHT, Axis, Chart
from pagewire.bench.report.charts import charts
from tests.pagewire.bench.records import made_record


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
