"""Figures as Prometheus reads them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import (
    Histogram,
    Key,
    Metric,
    Reading,
    counter,
    counters,
    gauge,
    histogram,
    histograms,
    metrics_of,
)

OPENMETRICS = "application/openmetrics-text; version=1.0.0,text/plain;q=0.5"


@dataclass(slots=True)
class Counted:
    steps: int = counter("steps_total", "Steps.")
    ends: Counter[str] = counters("ends_total", "Ends.", "reason")
    calls: Counter[tuple[str, str]] = counters("calls_total", "Calls.", "method", "code")
    heat: float = gauge("heat_celsius", "Heat.")
    seconds: Histogram = histogram("step_seconds", "Time.", (0.1, 1.0))
    by_kind: dict[Key, Histogram] = histograms("kind_seconds", "Time by kind.", "kind")


@pytest.fixture
def board() -> Board:
    counted = Counted(steps=3, heat=36.6)
    counted.ends["stop"] += 2
    counted.calls["a", 'b"\n'] += 1
    counted.seconds.observe(0.1)
    counted.seconds.observe(0.5, 3)
    counted.seconds.observe(7.0)
    counted.by_kind["x"] = Histogram((1.0,))
    board = Board("me")
    board.add_counters(counted)
    board.add_readings(5, [Reading(Metric("blocks", "gauge", "Blocks.", ("state",)), lambda n: {"free": n})])
    return board


def samples(families: Iterator[Any]) -> dict[tuple[str, str], float]:
    found = {}
    for family in families:
        for sample in family.samples:
            assert sample.labels.pop("process") == "me"
            found[sample.name, ",".join(sample.labels.values())] = sample.value
    return found


@pytest.mark.parametrize(
    ("accept", "parse"), [("", parse_text), ("text/plain", parse_text), (OPENMETRICS, parse_openmetrics)]
)
def test_what_was_counted_is_told(board: Board, accept: str, parse: Any):
    content_type, body = board.render(accept)
    assert content_type.startswith("application/openmetrics-text" if accept == OPENMETRICS else "text/plain")
    found = samples(parse(body.decode()))
    assert found["steps_total", ""] == 3
    assert found["ends_total", "stop"] == 2
    assert found["calls_total", 'b"\n,a'] == 1
    assert found["heat_celsius", ""] == 36.6
    assert found["blocks", "free"] == 5
    assert [found["step_seconds_bucket", edge] for edge in ("0.1", "1.0", "+Inf")] == [1, 4, 5]
    assert (found["step_seconds_count", ""], found["step_seconds_sum", ""]) == (5, pytest.approx(8.6))
    assert found["kind_seconds_count", "x"] == 0
    assert found["process_resident_memory_bytes", ""] > 0


def test_another_process_has_its_own_label():
    board = Board("me")
    board.add_system("child", 1)
    families = parse_text(board.render("")[1].decode())
    cpu = next(family for family in families if family.name == "process_cpu_seconds")
    assert [sample.labels["process"] for sample in cpu.samples] == ["me", "child"]


def test_a_value_that_grows_meanwhile_is_read_again():
    """Another thread counts during a scrape."""
    attempts = []

    def read(_: None) -> dict[str, float]:
        attempts.append(1)
        if len(attempts) < 3:
            raise RuntimeError("dictionary changed size during iteration")
        return {"x": 1.0}

    board = Board("me")
    board.add_readings(None, [Reading(Metric("things", "gauge", "Things.", ("name",)), read)])
    assert b'things{name="x",process="me"} 1.0' in board.render("")[1]


def test_what_is_declared_is_known_without_an_instance():
    assert [metric.name for metric in metrics_of(Counted)][:2] == ["steps_total", "ends_total"]
    assert metrics_of(Counted)[2].labels == ("method", "code")


def test_an_edge_belongs_to_what_is_below_it():
    seconds = Histogram((1.0, 2.0))
    for value in (0.0, 1.0, 1.5, 2.0, 2.5):
        seconds.observe(value)
    assert (seconds.counts, seconds.count) == ([2, 2, 1], 5)
