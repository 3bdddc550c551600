"""What a supervisor tells Prometheus: who is there, and how often somebody had to be started again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from signal import Signals

from pagewire.supervisor.child import Child
from pagewire.supervisor.restart_slot import Post, label
from pagewire.telemetry.board import Board
from pagewire.telemetry.figures import Metric, Reading, counters, metrics_of


@dataclass(slots=True)
class Counters:
    """Since the start."""

    restarts: Counter[tuple[str, str]] = counters(
        "pagewire_supervisor_restarts_total",
        "Processes that had died and were started again: how they ended (a signal's name, exit, failure).",
        "child",
        "reason",
    )


Posts = Callable[[], Sequence[Post]]

READINGS: tuple[Reading[Posts], ...] = (
    Reading(
        Metric("pagewire_supervisor_up", "gauge", "1: there is such a process, and it is ready.", ("child",)),
        lambda posts: {label(post.name): float(_is_ready(post.child)) for post in posts()},
    ),
    Reading(
        Metric(
            "pagewire_supervisor_last_pause_seconds",
            "gauge",
            "How long a place was empty when last its process had died.",
            ("child",),
        ),
        lambda posts: {label(post.name): post.last_pause for post in posts()},
    ),
)

METRICS = (*metrics_of(Counters), *(each.metric for each in READINGS))
"""All that a supervisor reports, for docs/metrics.md."""


def watch(board: Board, counters: Counters, posts: Posts) -> None:
    """Puts everything on the board."""
    board.add_counters(counters)
    board.add_readings(posts, READINGS)


def why_it_ended(child: Child) -> str:
    """In a word, for a label."""
    code = child.process.poll()
    if child.failure is not None:
        return "failure"
    return Signals(-code).name if code is not None and code < 0 else "exit"


def _is_ready(child: Child | None) -> bool:
    return child is not None and child.facts is not None and not child.is_lost
