"""docs/metrics.md is fresh; metrics are named by convention and counted."""

import re
from pathlib import Path

import pytest

from engine_core.counters import Counters as CoreCounters
from frontend.telemetry.counters import Counters as FrontendCounters
from pagewire.telemetry.figures import Metric
from scripts.metrics_page import PAGE, TABLES, page

METRICS = [metric for metrics in TABLES.values() for metric in metrics]
ROOT = Path(__file__).parent.parent


def test_the_page_is_fresh():
    """python -m scripts.metrics_page writes it."""
    assert page(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("metric", METRICS, ids=lambda metric: metric.name)
def test_names_follow_the_conventions(metric: Metric):
    """Base units; counters end in _total, nothing else does; ours begin with their process."""
    assert re.fullmatch(
        r"(pagewire_(frontend|core|worker|supervisor)|grpc_server)(_[a-z]+)+|pagewire_(build|model)_info",
        metric.name,
    )
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
