"""What the supervisor's metrics say of its processes."""

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from pagewire.errors import StartupError
from pagewire.supervisor.metrics import METRICS, Counters, end_of, watch
from pagewire.telemetry.board import Board


def child(code: int | None = None, failure: StartupError | None = None) -> Any:
    """A process that has ended with this exit code, or runs."""
    return SimpleNamespace(process=SimpleNamespace(poll=lambda: code), failure=failure)


@pytest.mark.parametrize(
    ("code", "end"),
    [(-signal.SIGKILL, "SIGKILL"), (-signal.SIGSEGV, "SIGSEGV"), (0, "exit"), (1, "exit"), (None, "exit")],
)
def test_how_a_process_has_ended(code: int | None, end: str):
    """A failure that it has reported says more than its exit code."""
    assert end_of(child(code)) == end
    assert end_of(child(code, StartupError("it", "broke"))) == "failure"


def slot(name: str, child: Any, standbys: int = 0, has_standby: bool = False, pause: float = 0.0) -> Any:
    return SimpleNamespace(
        name=name, child=child, standbys=range(standbys), has_standby=has_standby, last_pause=pause
    )


def values(slots: list[Any], counters: Counters | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    """By metric and values of labels, without that of the supervisor itself."""
    board = Board("supervisor")
    watch(board, counters or Counters(), lambda: slots)
    return {
        family.name: {tuple(sample.labels.values())[1:]: sample.value for sample in family.samples}
        for family in board.collect()
        if "supervisor" in family.name
    }


def test_a_process_is_up_from_when_it_is_ready_until_it_is_lost():
    """Not while it starts, or while there is none."""
    ready = SimpleNamespace(facts={}, is_lost=False)
    lost = SimpleNamespace(facts={}, is_lost=True)
    starting = SimpleNamespace(facts=None, is_lost=False)
    children = {"engine core": ready, "frontend 1": lost, "frontend 2": starting, "frontend 3": None}
    found = values([slot(name, child) for name, child in children.items()])
    assert found["pagewire_supervisor_up"] == {
        ("engine-core",): 1,
        ("frontend-1",): 0,
        ("frontend-2",): 0,
        ("frontend-3",): 0,
    }


def test_standbys_are_shown_of_roles_that_have_some():
    found = values([slot("a", None, 1, True), slot("b", None, 2, False), slot("c", None)])
    assert found["pagewire_supervisor_standby_ready"] == {("a",): 1, ("b",): 0}


def test_the_last_pause_and_the_restarts():
    counters = Counters()
    counters.restarts["engine-core", "SIGKILL"] += 2
    found = values([slot("engine core", None, pause=0.25)], counters)
    assert found["pagewire_supervisor_last_pause_seconds"] == {("engine-core",): 0.25}
    assert found["pagewire_supervisor_restarts"] == {("engine-core", "SIGKILL"): 2}


def test_all_metrics_are_listed_for_the_documentation():
    assert {metric.name.removesuffix("_total") for metric in METRICS} == set(values([]))
