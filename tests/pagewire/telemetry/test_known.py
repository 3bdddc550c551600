"""Series of known reasons begin with 0, so that a rate has their first event."""

import re
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

import engine_core
from engine_core.counters import Counters as CoreCounters
from frontend.telemetry.counters import Counters as FrontendCounters
from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import KNOWN, metrics_of

_REASON = re.compile(r'"((?:[A-Z]+_)+[A-Z]+)"')


def shown(counters: object) -> dict[tuple[str, str], float]:
    """The values of counters with known labels, by name and label."""
    board = Board("a")
    board.add_counters(counters)
    families = text_string_to_metric_families(board.render("")[1].decode())
    samples = [sample for family in families for sample in family.samples if sample.name in KNOWN]
    return {
        (sample.name, value): sample.value
        for sample in samples
        for name, value in sample.labels.items()
        if name != "process"
    }


def test_known_reasons_are_0_until_they_are_counted() -> None:
    frontend, core = FrontendCounters(), CoreCounters()
    before = shown(frontend) | shown(core)
    assert before == {(name, label): 0.0 for name, labels in KNOWN.items() for label in labels}
    frontend.failures["ENGINE_DEAD"] += 1
    frontend.failures["OF_A_NEWER_CORE"] += 2
    core.refused["QUEUE_FULL"] += 3
    counted = {
        ("pagewire_frontend_failures_total", "ENGINE_DEAD"): 1,
        ("pagewire_frontend_failures_total", "OF_A_NEWER_CORE"): 2,
        ("pagewire_core_refusals_total", "QUEUE_FULL"): 3,
    }
    assert shown(frontend) | shown(core) == before | counted


def test_the_table_names_counters() -> None:
    """With one label each."""
    declared = (*metrics_of(FrontendCounters), *metrics_of(CoreCounters))
    labels = {metric.name: metric.labels for metric in declared}
    assert all(len(labels[name]) == 1 for name in KNOWN)


def test_no_reason_of_an_engine_core_is_missing() -> None:
    known = {*KNOWN["pagewire_core_failures_total"], *KNOWN["pagewire_core_refusals_total"]}
    folder = Path(next(iter(engine_core.__path__)))
    named = {found for path in folder.rglob("*.py") for found in _REASON.findall(path.read_text())}
    assert named and named <= known, sorted(named - known)
    passed_on = {*KNOWN["pagewire_frontend_failures_total"], *KNOWN["pagewire_frontend_refusals_total"]}
    assert known <= passed_on
