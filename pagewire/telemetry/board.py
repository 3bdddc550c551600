"""All metrics of one process, rendered for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, TypeVar

from prometheus_client import ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from pagewire import __version__
from pagewire.telemetry.figures import Histogram, Metric, Reading, Value, values_of
from pagewire.telemetry.vllm_names import vllm_series

T = TypeVar("T")
Source = Callable[[], Iterable[tuple[Metric, Value]]]

_FAMILIES: dict[str, Any] = {
    "counter": CounterMetricFamily,
    "gauge": GaugeMetricFamily,
    "histogram": HistogramMetricFamily,
}
PROCESS = "process"
"""Label of every sample: the name of the process."""


BUILD_INFO = Metric("pagewire_build_info", "gauge", "1; which version of pagewire this is.", ("version",))


class Board(Collector):
    """A metrics registry without global state, so that one test may run several services."""

    def __init__(self, process: str) -> None:
        """process: value of the process label, such as "frontend-1"."""
        self.process = process
        self._sources: list[Source] = [lambda: [(BUILD_INFO, {__version__: 1.0})]]
        self._of_vllm: Mapping[str, str] | None = None
        self._systems: list[tuple[str, ProcessCollector]] = []
        self.add_system(process)

    def add_counters(self, instance: Any) -> None:
        """Adds a dataclass whose fields are declared with pagewire.telemetry.figures."""
        self._sources.append(lambda: values_of(instance))

    def add_readings(self, subject: T, readings: Iterable[Reading[T]]) -> None:
        """Adds values of an object, read at each scrape, in the HTTP thread."""
        kept = tuple(readings)
        self._sources.append(lambda: [(each.metric, each.read(subject)) for each in kept])

    def add_vllm_names(self, **labels: str) -> None:
        """Serves metrics under vLLM's names, too. labels: of all these, such as model_name."""
        self._of_vllm = labels

    def add_system(self, process: str, pid: int | None = None) -> None:
        """Adds CPU seconds, memory, descriptors and start time of a process from /proc. pid: None: this
        process."""
        read_pid = (lambda: "self") if pid is None else (lambda: str(pid))
        self._systems.append((process, ProcessCollector(pid=read_pid, registry=None)))

    def collect(self) -> Iterator[Family]:
        """Yields every family once, with all its samples."""
        families: dict[str, Family] = {}
        for source in self._sources:
            for metric, value in _steady(source):
                self._put(families, metric, value, {})
                if self._of_vllm is not None:
                    for theirs, same in vllm_series(metric, value):
                        self._put(families, theirs, same, self._of_vllm)
        for process, system in self._systems:
            for family in system.collect():
                _label(family, {PROCESS: process})
                known = families.setdefault(family.name, family)
                if known is not family:
                    known.samples.extend(family.samples)
        yield from families.values()

    def _put(
        self, families: dict[str, Family], metric: Metric, value: Value, labels: Mapping[str, str]
    ) -> None:
        family = _family(metric, value)
        families.setdefault(family.name, family)
        _label(family, {PROCESS: self.process, **labels})

    def render(self, accept: str) -> tuple[str, bytes]:
        """Returns content type and text. accept: the request's Accept header, which may ask for
        OpenMetrics."""
        encode, content_type = choose_encoder(accept)
        return content_type, encode(self)


def _steady(source: Source) -> list[tuple[Metric, Value]]:
    """Reads a source, again if another thread adds a label value meanwhile."""
    for _ in range(10):
        try:
            found = source()
            return [(name, dict(value) if isinstance(value, Mapping) else value) for name, value in found]
        except RuntimeError:  # a dictionary changed size while it was copied
            continue
    return []


def _family(metric: Metric, value: Value) -> Family:
    family: Family = _FAMILIES[metric.kind](metric.name, metric.help, labels=metric.labels)
    for key, each in value.items() if isinstance(value, Mapping) else [((), value)]:
        labels = (key,) if isinstance(key, str) else key
        if isinstance(each, Histogram):
            _add_histogram(family, labels, each)
        else:
            _add(family, labels, each)
    return family


def _add(family: Any, labels: tuple[str, ...], value: float) -> None:
    family.add_metric(labels, value)


def _add_histogram(family: Any, labels: tuple[str, ...], histogram: Histogram) -> None:
    edges = [*map(repr, histogram.edges), "+Inf"]
    family.add_metric(labels, list(zip(edges, accumulate(histogram.counts), strict=True)), histogram.sum)


def _label(family: Family, labels: Mapping[str, str]) -> None:
    family.samples = [sample._replace(labels={**labels, **sample.labels}) for sample in family.samples]
