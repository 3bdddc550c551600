"""The table says what was measured, and what its figures leave out."""

from bench_fakes import made_record
from pagewire_bench.driver import LevelRun
from pagewire_bench.load import Load
from pagewire_bench.record import BenchRecord
from pagewire_bench.report.table import number, table_lines
from pagewire_bench.trace import Trace


def test_a_table():
    head, first, second, *rest = table_lines(made_record(failures=2))
    assert head.split()[:4] == ["load", "requests", "req/s", "tokens/s"] and head.endswith("good")
    assert first.split()[:4] == ["1", "concurrent", "38", "7.60"] and second.startswith("8 concurrent")
    assert "good: ttft <= 75 ms" in rest
    assert "1 concurrent: 2 failed: RESOURCE_EXHAUSTED QUEUE_FULL" in rest
    assert "1 concurrent: p99 is of 38 requests: nearly the greatest" in rest


def test_a_level_that_failed_and_a_generator_that_was_late():
    traces = [Trace(0.0, 0.5, ended=0.6, error="UNAVAILABLE")]
    record = BenchRecord({}, {}, [LevelRun(Load(rate=2.0), 1.0, traces)])
    _, row, *rest = table_lines(record)
    assert row.split() == ["2", "requests/s", "0", "0.00", "0.00", *"------"]
    assert "2 requests/s: 100% of the requests were sent late: this machine is too slow for the load" in rest


def test_numbers():
    assert [number(value) for value in (12345.6, 99.94, 0.123)] == ["12,346", "99.9", "0.12"]
