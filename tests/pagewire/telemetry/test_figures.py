"""Metrics as fields of a dataclass."""

from collections import Counter
from dataclasses import dataclass

import pytest

from pagewire.telemetry.figures import (
    Histogram,
    counter,
    counters,
    gauge,
    histogram,
    histograms,
    metrics_of,
    values_of,
)


@dataclass(slots=True)
class Figures:
    steps: int = counter("steps_total", "Steps.")
    refusals: Counter[str] = counters("refusals_total", "Refusals.", "reason")
    lag: float = gauge("lag_seconds", "Lag.")
    waits: Histogram = histogram("wait_seconds", "Waits.", (1.0, 2.0))
    sizes: dict[str, Histogram] = histograms("size_bytes", "Sizes.", "kind")
    internal: int = 0


def test_fields_declare_their_metrics():
    found = [(metric.name, metric.kind, metric.labels) for metric in metrics_of(Figures)]
    assert found == [
        ("steps_total", "counter", ()),
        ("refusals_total", "counter", ("reason",)),
        ("lag_seconds", "gauge", ()),
        ("wait_seconds", "histogram", ()),
        ("size_bytes", "histogram", ("kind",)),
    ]


def test_values_are_those_of_the_fields():
    figures = Figures()
    figures.steps += 3
    figures.refusals["full"] += 2
    values = {metric.name: value for metric, value in values_of(figures)}
    assert values["steps_total"] == 3 and values["refusals_total"] == {"full": 2}
    assert "internal" not in values
    assert Figures().refusals == {}, "each instance has its own"


@pytest.mark.parametrize(("value", "bucket"), [(0.5, 0), (1.0, 0), (1.5, 1), (2.0, 1), (9.0, 2)])
def test_upper_edges_are_inclusive(value: float, bucket: int):
    observed = Histogram((1.0, 2.0))
    observed.observe(value, times=2)
    assert observed.counts[bucket] == observed.count == 2 and observed.sum == 2 * value
