"""The table of `pagewire replay` with settings: recorded, simulated as recorded, simulated otherwise."""

from collections.abc import Iterator, Mapping
from typing import Any

from pagewire_replay.reader import RecordingReader, read_settings, read_start
from pagewire_replay.reconstructed_requests import ReconstructedRequests
from pagewire_replay.step_time_model import StepTimes, measure
from pagewire_replay.summary import Figures
from pagewire_replay.what_if import CannotTry, what_if

_LONGEST_NAME = 60
"""Characters of a figure's name."""


def compare(
    recording: RecordingReader, recorded: Figures | None, changes: Mapping[str, Any]
) -> Iterator[str]:
    """Yields the lines to print. Raises CannotTry.

    recorded: figures of the replay; None if it differs from the recording. changes: settings of Scheduler,
    and "scheduling".
    """
    times, was_ahead = measure(recording)
    yield f"step times: {times}"
    if was_ahead:
        yield "(steps were planned one ahead: the time between steps is not known, and counts as 0)"
    columns = {} if recorded is None else {"recorded": recorded.rows()}
    columns["simulated"] = _simulate(recording, times, {}, was_ahead).rows()
    columns["what if"] = _simulate(recording, times, changes, was_ahead).rows()
    yield ""
    yield from _table(columns)


def _simulate(
    recording: RecordingReader, times: StepTimes, changes: Mapping[str, Any], was_ahead: bool
) -> Figures:
    start = read_start(recording)
    settings = read_settings(start.settings)
    _check(changes, settings, start.has_tokens)
    settings |= changes
    scheduling = settings.pop("scheduling", "ahead" if was_ahead else "sync")
    recorded = ReconstructedRequests(
        recording, block_size=settings["block_size"], has_tokens=start.has_tokens, ends_by_length=True
    )
    return what_if(recording, recorded, settings, times, ahead=scheduling == "ahead")


def _check(changes: Mapping[str, Any], settings: Mapping[str, Any], has_tokens: bool) -> None:
    if changes.get("block_size", settings["block_size"]) != settings["block_size"] and not has_tokens:
        raise CannotTry(
            "which blocks of another size would be equal is not known: --block-size needs a recording made"
            " with --record-tokens"
        )


def _table(columns: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Yields lines: a column per run, a row per figure that any of the runs has."""
    names = list(dict.fromkeys(name for rows in columns.values() for name in rows))
    labels = {name: _shortened(name) for name in names}
    first = max(map(len, labels.values()))
    widths = {
        title: max(len(title), *(len(value) for value in rows.values())) for title, rows in columns.items()
    }
    yield "  ".join([" " * first, *(f"{title:>{width}}" for title, width in widths.items())])
    for name in names:
        cells = (f"{rows.get(name, '-'):>{widths[title]}}" for title, rows in columns.items())
        yield "  ".join([f"{labels[name]:<{first}}", *cells])


def _shortened(name: str) -> str:
    """Returns a name that fits beside three columns: a tenant's name may have 256 bytes."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 21]}...{name[-18:]}"
