"""docs/metrics.md has a row for every metric, with its kind, its labels and its text, and for no other."""

import re
from pathlib import Path

import pytest

from engine_core import metrics as engine_core
from engine_core.counters import Counters as CoreCounters
from frontend import metrics as frontend
from frontend.telemetry.counters import Counters as FrontendCounters
from pagewire.supervisor import metrics as supervisor
from pagewire.telemetry.figures import Metric

METRICS = [*frontend.METRICS, *engine_core.METRICS, *supervisor.METRICS]
ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/metrics.md").read_text()


def row_of(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |".replace("|  |", "| |")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_every_metric_has_its_row(metric: Metric):
    assert any(line.startswith(row_of(metric)) for line in PAGE.splitlines()), row_of(metric)


def test_every_row_has_its_metric():
    rows = re.findall(r"^\| `(\w+)` \| (?:counter|gauge|histogram) ", PAGE, re.MULTILINE)
    assert sorted(rows) == sorted(metric.name for metric in METRICS)


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric):
    """Base units; counters end in _total, nothing else does; ours begin with their process."""
    assert re.fullmatch(r"(pagewire_(frontend|core|worker|supervisor)|grpc_server)(_[a-z]+)+", metric.name)
    assert (metric.kind == "counter") == metric.name.endswith("_total")
    assert not re.search(r"_(ms|us|millis|micros|kb|mb|percent)(_|$)", metric.name)
    assert not set(metric.labels) & {"request_id", "handle", "process"}
    assert "|" not in metric.help


@pytest.mark.parametrize("kind", [FrontendCounters, CoreCounters], ids=["frontend", "engine core"])
def test_every_counter_is_counted(kind: type):
    """By some file of its process, which may be that of the counters."""
    room = ROOT / kind.__module__.partition(".")[0]
    sources = "\n".join(path.read_text() for path in room.rglob("*.py"))
    assert not [name for name in kind.__slots__ if not re.search(rf"\.{name}\b", sources)]
