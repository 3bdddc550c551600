"""`pagewire replay`: exits 0 if the plans equal those of the recording, 1 if one differs."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pagewire.command_config import ReplayConfig
from pagewire.flags import UsageError
from pagewire_replay.compare import compare
from pagewire_replay.reader import RecordingReader
from pagewire_replay.replay import Difference, Replay

CONFIG = ReplayConfig


def run(config: ReplayConfig) -> int:
    """Prints the result; returns the exit code. Raises BadRecording and CannotTry."""
    if not config.recording:
        raise UsageError("FILE is missing", todo="pagewire replay FILE; --record FILE writes one")
    recording = RecordingReader(Path(config.recording))
    outcome = Replay(recording).run()
    if recording.incomplete:
        print(f"the recording is not whole: {recording.incomplete}", file=sys.stderr)
    is_same = outcome.difference is None
    if outcome.difference is None:
        print(f"all {outcome.num_plans} plans are the same")
    else:
        _print_difference(outcome.difference, outcome.num_plans)
    if changes := _changes(config):
        for line in compare(recording, outcome.figures if is_same else None, changes):
            print(line)
    return 0 if is_same else 1


def _changes(config: ReplayConfig) -> dict[str, Any]:
    """Returns the settings that differ from the recording."""
    values = asdict(config)
    del values["recording"]
    if values.pop("no_prefix_cache"):
        values["prefix_cache"] = False
    return {name: value for name, value in values.items() if value not in (None, "recorded")}


def _print_difference(difference: Difference, num_plans: int) -> None:
    print(f"step {difference.step} differs ({num_plans} plans before it are the same)")
    print(f"clock:    {difference.now:.6f} s")
    print(f"field:    {difference.field}")
    print(f"expected: {difference.expected}")
    print(f"got:      {difference.got}")
