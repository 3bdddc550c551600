"""Kills: python -m tests.chaos.run --kills 1000, or --check FILE. docs/testing.md."""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.chaos.chaos import DEFAULT, DEVICES, FRONTENDS, Result, Setting, run
from tests.chaos.checker import check, tally
from tests.chaos.history import read
from tests.chaos.pauses import Pauses, summary, table

ROUND = 80
"""Strikes under one service and its 80 streams, unless --round says otherwise; then another one starts, with
the next seed."""
SHARES = {"engine": 25, "worker": 25, "frontend": 30}
KEPT = Path("build/chaos")
_GAPS = "seconds between two strikes, whatever the streams do; default: when they have moved on"
_LINES = 20


def describe(result: Result, path: Path) -> str:
    """What is wrong, and how to see it again."""
    begin = result.history.begin
    lines = [*result.trouble, *map(str, result.findings[:_LINES])]
    if len(result.findings) > _LINES:
        lines.append(f"... and {len(result.findings) - _LINES} more")
    victims = " ".join(f"{name}={count}" for name, count in begin["counts"].items())
    setting = f"--device {begin['device']} --cores {begin['cores']} --frontends {begin['frontends']}"
    if begin.get("speculate"):
        setting += f" --speculate {begin['speculate']}"
    if begin.get("gaps"):
        setting += " --gaps {} {}".format(*begin["gaps"])
    if begin.get("load"):
        setting += f" --load {begin['load']}"
    if begin.get("ranks", 1) > 1:
        setting += f" --tensor-parallel-size {begin['ranks']}"
    if begin.get("stages", 1) > 1:
        setting += f" --pipeline-parallel-size {begin['stages']}"
    lines.append(f"judge it again: python -m tests.chaos.run --check {path}")
    lines.append(
        f"run it again:   python -m tests.chaos.run --seed {begin['seed']} {setting} --victims {victims}"
    )
    return "\n".join(lines)


def share(kills: int, shares: dict[str, int]) -> dict[str, int]:
    """So many strikes, dealt out in these proportions."""
    whole, given, so_far = sum(shares.values()), Counter[str](), 0
    for name, part in shares.items():
        so_far += part
        given[name] = round(kills * so_far / whole) - given.total()
    return dict(given)


class Totals:
    """Of all rounds so far."""

    def __init__(self) -> None:
        self.kills = self.streams = self.refused = self.accepted = 0
        self._wrong: Counter[str] = Counter()
        self._pauses = Pauses()
        self._began = time.monotonic()

    def add(self, result: Result) -> None:
        """One more round."""
        history = result.history
        self._pauses.add(history)
        self._wrong.update(tally(result.findings))
        self.kills += len(history.strikes)
        self.streams += len(history.disturbed)
        self.refused += history.num_refused
        self.accepted += history.num_accepted
        passed = time.monotonic() - self._began
        counts = f"{self.kills} kills, {self.streams} streams, {self.refused} refused"
        print(f"{counts}, {self.accepted} accepted drafts, {passed:.0f} s", flush=True)

    def __str__(self) -> str:
        wrong = ", ".join(f"{count} {name}" for name, count in self._wrong.items())
        return f"{self.kills} kills, {self.streams} streams: {wrong}\n{table(self._pauses.rows())}"


@dataclass(frozen=True)
class Limits:
    """How much is run, and where it is written down."""

    kills: int
    per_round: int = ROUND
    seconds: float = float(
        "inf"
    )  # no round begins that would not end within them, if it is as long as others
    json: Path | None = None  # a row per round; rounds that it has are not run again
    keeps_all: bool = False  # also the histories of rounds in which nothing was wrong


def run_rounds(limits: Limits, seed: int, setting: Setting, shares: dict[str, int]) -> int:
    """Prints a line per round, and at the end the sums and the pauses. 1 when anything was wrong."""
    KEPT.mkdir(parents=True, exist_ok=True)
    totals, began, longest = Totals(), time.monotonic(), 0.0
    rounds = _known_rounds(limits.json)
    known = {one["seed"] for one in rounds}
    try:
        for one_seed, planned in enumerate(range(0, limits.kills, limits.per_round), start=seed):
            path = KEPT / f"seed-{one_seed}.jsonl"
            if one_seed in known:
                continue
            passed = time.monotonic() - began
            if passed + longest > limits.seconds:
                break
            counts = share(min(limits.per_round, limits.kills - planned), shares)
            result = run(counts, one_seed, path, setting)
            longest = max(longest, time.monotonic() - began - passed)
            totals.add(result)
            rounds.append(row_of(result))
            if limits.json is not None:
                limits.json.write_text(json.dumps({"rounds": rounds}, indent=1) + "\n")
            if not result.is_fine:
                print(describe(result, path), flush=True)
            elif not limits.keeps_all:
                path.unlink()
    except KeyboardInterrupt:
        print("interrupted: these rounds are whole")
    print(totals)
    return int(any(one["wrong"] for one in rounds))


def _known_rounds(path: Path | None) -> list[dict[str, Any]]:
    rounds: list[dict[str, Any]] = json.loads(path.read_text())["rounds"] if path and path.exists() else []
    return rounds


def row_of(result: Result) -> dict[str, Any]:
    """What is written down of a round."""
    pauses, history = Pauses(), result.history
    pauses.add(history)
    return {
        "seed": history.begin["seed"],
        "kills": len(history.strikes),
        "streams": len(history.disturbed),
        "refused": history.num_refused,
        "wrong": [*result.trouble, *map(str, result.findings[:_LINES])],
        "pauses": [summary(row) for row in pauses.rows()],
    }


def check_again(path: Path) -> int:
    """Judges a history that was kept. 1 when anything is wrong with its streams."""
    history = read(path)
    findings, pauses = check(history), Pauses()
    pauses.add(history)
    for finding in findings:
        print(finding)
    print(f"{len(history.disturbed)} streams:", tally(findings))
    print(table(pauses.rows()))
    return int(bool(findings))


def _shares(words: Sequence[str]) -> dict[str, int]:
    return {name: int(count) for name, _, count in (word.partition("=") for word in words)}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__)
    parser.add_argument("--kills", type=int, help="strikes in all; default: those of --victims")
    parser.add_argument("--seed", type=int, default=6, help="of the first round")
    parser.add_argument("--device", choices=list(DEVICES), default="simulated")
    parser.add_argument("--cores", type=int, default=1, help="engine cores behind the frontends")
    parser.add_argument("--tensor-parallel-size", type=int, default=1, help="ranks of each stage")
    parser.add_argument("--pipeline-parallel-size", type=int, default=1, help="stages of each worker")
    parser.add_argument("--frontends", type=int, help="1: its standby takes over; default: 3")
    parser.add_argument("--gaps", type=float, nargs=2, metavar=("LEAST", "MOST"), help=_GAPS)
    parser.add_argument("--load", type=int, default=0, help="processes beside it that compute all the time")
    parser.add_argument("--speculate", default="", help="METHOD[:OPTIONS], as of pagewire serve")
    parser.add_argument(
        "--victims",
        nargs="+",
        metavar="NAME=SHARE",
        default=[f"{name}={count}" for name, count in SHARES.items()],
        help="engine, worker, frontend, standby, all; with another signal as in engine:SIGSTOP=3",
    )
    parser.add_argument("--round", type=int, default=ROUND, help="strikes under one service; default: 80")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="for all rounds")
    parser.add_argument("--json", type=Path, help="a row per round; those that it has are not run again")
    parser.add_argument(
        "--keep", action="store_true", help=f"all histories, in {KEPT}; default: of bad rounds"
    )
    parser.add_argument("--check", type=Path, metavar="FILE", help="judge a history")
    options = parser.parse_args(arguments)
    if options.check is not None:
        return check_again(options.check)
    shares = _shares(options.victims)
    kills = sum(shares.values()) if options.kills is None else options.kills
    limits = Limits(kills, options.round, options.seconds, options.json, options.keep)
    frontends = options.frontends or (1 if options.device == DEFAULT else FRONTENDS)
    gaps = tuple(options.gaps) if options.gaps else None
    group = options.tensor_parallel_size, options.pipeline_parallel_size
    surroundings = frontends, gaps, options.load, *group
    setting = Setting(options.device, options.cores, options.speculate, *surroundings)
    return run_rounds(limits, options.seed, setting, shares)


if __name__ == "__main__":
    sys.exit(main())
