"""The file of a load test: settings, and every request of every level, as JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pagewire.flags import UsageError
from pagewire_bench.driver import LevelRun
from pagewire_bench.figures import LevelFigures, figures_of
from pagewire_bench.load import Load
from pagewire_bench.trace import Trace

FORMAT = "pagewire-bench-1"
_DIGITS = 6
"""Times are kept to the microsecond."""


@dataclass(frozen=True)
class BenchRecord:
    """A load test. about: what was measured, when and how (all text and numbers). goals: limits of goodput in
    milliseconds. runs: all runs of all levels, in the order in which they ran."""

    about: Mapping[str, Any]
    goals: Mapping[str, float]
    runs: list[LevelRun]

    @property
    def title(self) -> str:
        """The label, or else model and address."""
        return str(self.about.get("label") or f"{self.about.get('model')} at {self.about.get('address')}")

    def loads(self) -> list[Load]:
        """Returns the levels in order."""
        return list(dict.fromkeys(run.load for run in self.runs))

    def runs_of(self, load: Load) -> list[LevelRun]:
        """Returns the runs of one level."""
        return [run for run in self.runs if run.load == load]

    def figures(self, load: Load) -> LevelFigures:
        """Returns the figures of one level."""
        return figures_of(self.runs_of(load), self.goals)


def write_record(record: BenchRecord, path: Path) -> None:
    """Writes the file. Raises UsageError."""
    content = {
        "format": FORMAT,
        "about": dict(record.about),
        "goals": dict(record.goals),
        "figures": [{"load": load.name, **asdict(record.figures(load))} for load in record.loads()],
        "runs": [_run_to_json(run) for run in record.runs],
    }
    write_text(path, "--json", json.dumps(content, separators=(",", ":")) + "\n")


def write_text(path: Path, option: str, text: str) -> None:
    """Writes a file that a flag names. Raises UsageError."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {option} {path}", str(error.strerror)) from None


def read_record(path: Path) -> BenchRecord:
    """Reads a file of write_record. Raises UsageError."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if content["format"] != FORMAT:
            raise UsageError(f"cannot compare {path}", f"its format is {content['format']!r}, not {FORMAT!r}")
        runs = [_run_from_json(run) for run in content["runs"]]
        return BenchRecord(content["about"], content["goals"], runs)
    except OSError as error:
        raise UsageError(f"cannot read {path}", str(error.strerror)) from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"cannot read {path}", "it was not written by pagewire bench --json") from None


def _run_to_json(run: LevelRun) -> dict[str, Any]:
    traces = []
    for trace in run.traces:
        values = asdict(trace)
        values["arrivals"] = [[round(at, _DIGITS), tokens] for at, tokens in trace.arrivals]
        for name in ("due", "sent", "ended"):
            values[name] = round(values[name], _DIGITS)
        traces.append(values)
    return {**asdict(run.load), "seconds": run.seconds, "requests": traces}


def _run_from_json(values: Mapping[str, Any]) -> LevelRun:
    traces = [
        Trace(**{**trace, "arrivals": [(float(at), int(tokens)) for at, tokens in trace["arrivals"]]})
        for trace in values["requests"]
    ]
    return LevelRun(Load(values["rate"], values["concurrency"]), float(values["seconds"]), traces)
