"""Figures of a process, declared where they are counted.

A room has one dataclass of counters. A field is a plain integer, a Counter or a Histogram, so that counting
costs what `+= 1` costs; its declaration holds what Prometheus is told, and is the only place that knows the
name. What is a fact of an object, such as the number of free blocks, is not counted: it is a Reading, looked
up when somebody asks.

    @dataclass(slots=True)
    class Counters:
        steps: int = counter("pagewire_core_steps_total", "Steps whose results were taken in.")
        refusals: Counter[str] = counters("pagewire_core_refusals_total", "Requests refused.", "reason")

Values of labels come from small closed sets: never ids, never text that a client wrote.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

T = TypeVar("T")
Key = str | tuple[str, ...]

TOKEN_SECONDS = (
    0.0001, 0.00025, 0.0005, 0.00075, 0.001, 0.0015, 0.002, 0.003, 0.005, 0.0075,
    0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0,
)  # fmt: skip
"""Edges for what happens per token or step: finest around 1 ms."""
REQUEST_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0,
)  # fmt: skip
"""Edges for what happens per request."""
TOKENS = tuple(float(1 << power) for power in range(0, 18))
"""Edges for numbers of tokens: 1 to 131072."""


class Histogram:
    """Observations in buckets. One thread observes, any may read."""

    __slots__ = ("edges", "counts", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """edges: upper borders, ascending; an observation that equals one belongs to it."""
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)  # the last one: above all edges
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """So many observations of one value."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        """Of all observations."""
        return sum(self.counts)


Value = float | Histogram | Mapping[Any, Any]
"""What a metric has: a number, a histogram, or one of them for each value of its labels (Key)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A row of docs/metrics.md."""

    name: str  # in base units; that of a counter ends in _total
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A gauge (or a counter that somebody else keeps) and where its value stands."""

    metric: Metric
    read: Callable[[T], Value]


def counter(name: str, help: str) -> Any:
    """A field that counts."""
    return field(default=0, metadata={"metric": Metric(name, "counter", help)})


def counters(name: str, help: str, *labels: str) -> Any:
    """A field that counts by label: Counter[str], with several labels Counter[tuple[str, ...]]."""
    return field(default_factory=Counter, metadata={"metric": Metric(name, "counter", help, labels)})


def gauge(name: str, help: str) -> Any:
    """A field that holds a number."""
    return field(default=0.0, metadata={"metric": Metric(name, "gauge", help)})


def histogram(name: str, help: str, edges: Sequence[float]) -> Any:
    """A field that is a Histogram."""
    return field(
        default_factory=lambda: Histogram(edges), metadata={"metric": Metric(name, "histogram", help)}
    )


def histograms(name: str, help: str, *labels: str) -> Any:
    """A field that holds histograms by label: dict[Key, Histogram]; whoever observes makes them."""
    return field(default_factory=dict, metadata={"metric": Metric(name, "histogram", help, labels)})


def metrics_of(counters_class: type[Any]) -> list[Metric]:
    """What a dataclass of counters declares."""
    found = (each.metadata.get("metric") for each in dataclasses.fields(counters_class))
    return [metric for metric in found if metric is not None]


def values_of(instance: Any) -> Iterator[tuple[Metric, Value]]:
    """What it holds now."""
    for each in dataclasses.fields(instance):
        if "metric" in each.metadata:
            yield each.metadata["metric"], getattr(instance, each.name)
