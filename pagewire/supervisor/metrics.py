"""Metrics of the supervisor: which processes are ready, and how often each was restarted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from signal import Signals

from pagewire.supervisor.child import Child
from pagewire.supervisor.restart_slot import RestartSlot, label
from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import Metric, Reading, counters, metrics_of


@dataclass(slots=True)
class Counters:
    """Counters since the supervisor started."""

    restarts: Counter[tuple[str, str]] = counters(
        "pagewire_supervisor_restarts_total",
        "Restarts of processes that had died, by how they ended (a signal's name, exit, failure).",
        "child",
        "reason",
    )


Slots = Callable[[], Sequence[RestartSlot]]

READINGS: tuple[Reading[Slots], ...] = (
    Reading(
        Metric("pagewire_supervisor_up", "gauge", "1: the process is running and ready.", ("child",)),
        lambda slots: {label(slot.name): float(_is_ready(slot.child)) for slot in slots()},
    ),
    Reading(
        Metric(
            "pagewire_supervisor_last_pause_seconds",
            "gauge",
            "Length of the last outage, from a process's death until its successor was ready.",
            ("child",),
        ),
        lambda slots: {label(slot.name): slot.last_pause for slot in slots()},
    ),
    Reading(
        Metric(
            "pagewire_supervisor_standby_ready",
            "gauge",
            "1: processes that have imported everything wait to fork the next one.",
            ("child",),
        ),
        lambda slots: {label(slot.name): float(slot.has_standby) for slot in slots() if slot.standbys},
    ),
)

METRICS = (*metrics_of(Counters), *(each.metric for each in READINGS))
"""All metrics of a supervisor, for docs/metrics.md."""


def watch(board: Board, counters: Counters, slots: Slots) -> None:
    board.add_counters(counters)
    board.add_readings(slots, READINGS)


def end_of(child: Child) -> str:
    """Returns how a process ended, as a label value."""
    code = child.process.poll()
    if child.failure is not None:
        return "failure"
    return Signals(-code).name if code is not None and code < 0 else "exit"


def _is_ready(child: Child | None) -> bool:
    return child is not None and child.facts is not None and not child.is_lost
