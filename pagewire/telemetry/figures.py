"""Metrics of a process, declared where they are counted.

Each process has one dataclass of counters. A field is a plain integer, a Counter or a Histogram, so that
counting costs a `+= 1`; its declaration holds name, kind and help for Prometheus. A value that an object has
anyway, such as the number of free blocks, is not counted: it is a Reading, evaluated at each scrape.

    @dataclass(slots=True)
    class Counters:
        steps: int = counter("pagewire_core_steps_total", "Steps whose results were processed.")
        refusals: Counter[str] = counters("pagewire_core_refusals_total", "Requests refused.", "reason")

Label values come from small closed sets: never ids, never text from clients.
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
"""Bucket edges for durations per token or step, finest around 1 ms."""
REQUEST_SECONDS = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0,
)  # fmt: skip
"""Bucket edges for durations per request."""
TOKENS = tuple(float(1 << power) for power in range(0, 18))
"""Bucket edges for token counts: 1 to 131072."""
_FAILURES = (
    *("CONTINUED_ELSEWHERE", "ENGINE_DEAD", "FRONTEND_LOST", "GRAMMAR_FAILED", "INTERNAL", "NO_LOGITS"),
    "REQUEST_QUARANTINED",
)
_REFUSALS = (
    *("ADAPTER_CHANGED", "ADAPTER_INVALID", "ADAPTER_NAME_IN_USE", "ADAPTER_NOT_FOUND"),
    *("ADAPTER_QUARANTINED", "ADAPTER_SOURCE_FORBIDDEN", "TOO_MANY_ADAPTERS"),
    *("CONTEXT_LENGTH_EXCEEDED", "CONTINUED_ELSEWHERE", "DEADLINE_UNREACHABLE", "FEATURE_UNSUPPORTED"),
    *("INVALID_FIELD", "MEDIA_CHANGED", "MEDIA_MEMORY_FULL", "MEDIA_TOO_LARGE", "MEDIA_UNAVAILABLE"),
    *("MEDIA_UNKNOWN", "QUEUE_FULL", "REQUEST_ABORTED", "REQUEST_ID_IN_USE", "REQUEST_QUARANTINED"),
    *("TENANT_QUOTA", "WAIT_TOO_LONG"),
)
_ENDS = ("DRAINING", "ENGINE_NOT_READY", "SHUTTING_DOWN", "SLOW_CONSUMER")
KNOWN: dict[str, tuple[str, ...]] = {
    "pagewire_core_failures_total": _FAILURES,
    "pagewire_core_refusals_total": _REFUSALS,
    "pagewire_core_handovers_total": ("true", "false"),
    "pagewire_frontend_failures_total": (*_FAILURES, *_ENDS),
    "pagewire_frontend_refusals_total": (*_REFUSALS, *_ENDS, "FRONTEND_FULL", "INTERNAL"),
    "pagewire_frontend_requests_total": ("finished", "refused", "failed", "cancelled"),
}
"""Label values that are shown as 0 before they are counted: no rate() has the first event of a series that
begins with it."""


MOST_NAMES = 20
"""Tenants or adapters with a value of their own; all others share one."""
OTHERS = "(others)"


class Histogram:
    """Observations in buckets. Written by one thread, readable by any."""

    __slots__ = ("edges", "counts", "sum")

    def __init__(self, edges: Sequence[float]) -> None:
        """edges: upper bounds of the buckets, ascending and inclusive."""
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)  # the last one counts values above all edges
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        """Adds `times` observations of one value."""
        self.counts[bisect_left(self.edges, value)] += times
        self.sum += value * times

    @property
    def count(self) -> int:
        return sum(self.counts)


Value = float | Histogram | Mapping[Any, Any]
"""Value of a metric: a number, a histogram, or one of these per label value (Key)."""


@dataclass(frozen=True, slots=True)
class Metric:
    """Name, kind, help and labels of a metric: a row of docs/metrics.md."""

    name: str  # in base units; counters end in _total
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """A metric whose value is read from an object at each scrape."""

    metric: Metric
    read: Callable[[T], Value]


def counter(name: str, help: str) -> Any:
    """Declares a counter field: int."""
    return field(default=0, metadata={"metric": Metric(name, "counter", help)})


def counters(name: str, help: str, *labels: str) -> Any:
    """Declares a labelled counter field: Counter[str], or Counter[tuple[str, ...]] with several labels."""
    return field(default_factory=Counter, metadata={"metric": Metric(name, "counter", help, labels)})


def gauge(name: str, help: str) -> Any:
    """Declares a gauge field: float."""
    return field(default=0.0, metadata={"metric": Metric(name, "gauge", help)})


def histogram(name: str, help: str, edges: Sequence[float]) -> Any:
    """Declares a Histogram field."""
    return field(
        default_factory=lambda: Histogram(edges), metadata={"metric": Metric(name, "histogram", help)}
    )


def histograms(name: str, help: str, *labels: str) -> Any:
    """Declares a field of histograms by label: dict[Key, Histogram], empty at first."""
    return field(default_factory=dict, metadata={"metric": Metric(name, "histogram", help, labels)})


def metrics_of(counters_class: type[Any]) -> list[Metric]:
    """Returns the metrics that a dataclass of counters declares."""
    found = (each.metadata.get("metric") for each in dataclasses.fields(counters_class))
    return [metric for metric in found if metric is not None]


def values_of(instance: Any) -> Iterator[tuple[Metric, Value]]:
    """Yields the metrics and current values of a dataclass of counters."""
    for each in dataclasses.fields(instance):
        if "metric" in each.metadata:
            metric, value = each.metadata["metric"], getattr(instance, each.name)
            known = KNOWN.get(metric.name)
            yield metric, {**dict.fromkeys(known, 0.0), **value} if known else value
