"""Tests, in as many processes as it takes: a part of benchmarks.gpu.first_hour.

    python -m benchmarks.gpu.first_hour.gpu_tests --marker gpu --json tests.json tests/worker/cuda

A kernel that writes out of bounds ends the context of its process: every later test there would fail for it.
So after a failure the device is asked whether it still answers, and where it does not, or where the process
died or hung, a new process goes on behind that test. Outcomes are in the file after each test; tests that
have one there are not run again. Exits with 1 when a test failed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.options import make_parser
from pagewire.host.spawn import die_with

RUNNING, PASSED, FAILED, SKIPPED, DIED = "running", "passed", "failed", "skipped", "died"
LOST = 77
"""Exit code of a process whose device does not answer any more."""
NOTHING_TO_DO = int(pytest.ExitCode.NO_TESTS_COLLECTED)
MOST_PROCESSES = 20


@dataclass
class Outcomes:
    """By test, in a file that is whole at any moment."""

    path: Path

    def __post_init__(self) -> None:
        known = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.of: dict[str, str] = known.get("outcomes", {})
        self.why: dict[str, str] = known.get("why", {})

    def put(self, test: str, outcome: str, why: str = "") -> None:
        """Writes it down."""
        self.of[test] = outcome
        if why:
            self.why[test] = why
        beside = self.path.with_suffix(".new")
        beside.write_text(json.dumps({"outcomes": self.of, "why": self.why}, indent=1) + "\n")
        beside.replace(self.path)

    def bury(self, why: str) -> None:
        """What was running when its process ended, has ended it."""
        for test in [test for test, outcome in self.of.items() if outcome == RUNNING]:
            self.put(test, DIED, why)


class Recorder:
    """A plugin of pytest."""

    def __init__(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """Leaves out what has an outcome."""
        known = [item for item in items if item.nodeid in self._outcomes.of]
        items[:] = [item for item in items if item.nodeid not in self._outcomes.of]
        config.hook.pytest_deselected(items=known)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before its fixtures."""
        self._outcomes.put(nodeid, RUNNING)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Of fixtures, test, and what comes after: the worst counts."""
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            text = crash.message if crash else report.longreprtext
            self._outcomes.put(report.nodeid, FAILED, text.strip().partition("\n")[0][:300])
        elif report.skipped:
            self._outcomes.put(report.nodeid, SKIPPED)
        elif report.when == "teardown" and self._outcomes.of[report.nodeid] == RUNNING:
            self._outcomes.put(report.nodeid, PASSED)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """Ends the process where the device is lost."""
        if self._outcomes.of[nodeid] == FAILED and not device_answers():
            pytest.exit("the device does not answer any more", LOST)


def device_answers() -> bool:
    """Whether launches still work in this process; true where there is no device."""
    import torch

    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return True
    try:
        torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True


def run_all(words: list[str], outcomes: Outcomes) -> int:
    """Runs processes until one has come to the end. words: for pytest. Returns the exit code of the last."""
    for _ in range(MOST_PROCESSES):
        outcomes.bury("its process was cut off")
        command = [sys.executable, "-m", __spec__.name, "--child", f"--json={outcomes.path}", *words]
        run = subprocess.run(command, preexec_fn=partial(die_with, os.getpid(), signal.SIGKILL))
        outcomes.__post_init__()
        if run.returncode in (0, 1, NOTHING_TO_DO) and RUNNING not in outcomes.of.values():
            return 0 if run.returncode == NOTHING_TO_DO and outcomes.of else run.returncode
        if run.returncode != LOST and RUNNING not in outcomes.of.values():
            return run.returncode  # pytest refused
        outcomes.bury(f"its process ended with {run.returncode}")
    return 1


def summary(outcomes: Outcomes) -> dict[str, Any]:
    """Counts, and the tests that failed."""
    counts = {name: list(outcomes.of.values()).count(name) for name in (PASSED, FAILED, DIED, SKIPPED)}
    return counts | {"why": {test: why for test, why in outcomes.why.items() if test in outcomes.of}}


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--marker", default="", help="as pytest's -m")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    outcomes = Outcomes(options.json)
    if options.child:
        marker = [f"-m={options.marker}"] if options.marker else []
        words = [*options.folders, *marker, "-q", "--tb=short", "-p", "no:cacheprovider"]
        sys.exit(pytest.main(words, plugins=[Recorder(outcomes)]))
    code = run_all([*options.folders, f"--marker={options.marker}"], outcomes)
    found = summary(outcomes)
    print(f"{found[PASSED]} passed, {found[FAILED]} failed, {found[DIED]} ended their process")
    sys.exit(1 if found[FAILED] or found[DIED] or not found[PASSED] else code)


if __name__ == "__main__":
    main()
