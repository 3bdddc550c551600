"""What is better is said with its confidence, and what is no difference is not called one."""

import pytest

from bench_fakes import LOADS, made_record, made_run
from pagewire.flags import UsageError
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.comparison import compared, comparison_lines, differences


def test_a_slower_service_is_worse():
    ((load, figures), _) = compared(made_record(), made_record(1.5))
    verdicts = {figure.name: figure.is_better for figure in figures}
    assert load == LOADS[0]
    assert verdicts["TTFT p50 ms"] is verdicts["ITL p50 ms"] is verdicts["E2E p50 ms"] is False
    assert verdicts["goodput/s"] is False
    (back, _) = compared(made_record(1.5), made_record())
    assert {figure.name: figure.is_better for figure in back[1]}["TTFT p50 ms"] is True
    assert {figure.name: figure.interval for figure in back[1]}["goodput/s"] is None  # the first has none


def test_the_same_service_shows_no_difference():
    for _, figures in compared(made_record(), made_record()):
        assert {figure.is_better for figure in figures} == {None}
        assert all(figure.interval is None or figure.interval.ratio == 1 for figure in figures)


def test_a_tail_needs_many_requests():
    record = made_record()
    lines = comparison_lines(record, record)
    assert [line.endswith("too few requests") for line in lines if "p50" in line] == [False] * 6
    assert [line.endswith("too few requests") for line in lines if "p90" in line or "p99" in line] == [
        True
    ] * 12


def test_lines():
    lines = comparison_lines(made_record(label="old"), made_record(1.5, label="new", input_len="64"))
    assert lines[:3] == ["A: old", "B: new", "they differ in input_len: 16 and 64"]
    assert any(line.startswith("TTFT p50 ms") and line.endswith("worse") for line in lines)
    assert any(line.startswith("tokens/s") and line.endswith("no difference shown") for line in lines)


def test_only_common_levels_are_compared():
    first, second = made_record(), BenchRecord({}, {}, [made_run(LOADS[1])])
    assert [load for load, _ in compared(first, second)] == [LOADS[1]]
    assert "goodput: {'ttft': 75.0} and {}" in differences(first, second)
    with pytest.raises(UsageError, match="no level in common"):
        compared(BenchRecord({}, {}, [made_run(LOADS[0])]), second)
