"""Kills: python -m tests.chaos.run --kills 1000, or --check FILE. docs/testing.md."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.chaos import DEVICES, Result, run
from tests.chaos.checker import check, tally
from tests.chaos.history import read
from tests.chaos.pauses import Pauses, table

ROUND = 80
"""Strikes under one service and its 64 streams; then another one starts, with the next seed."""
SHARES = {"engine": 25, "worker": 25, "frontend": 30}
KEPT = Path("build/chaos")
_LINES = 20


def describe(result: Result, path: Path) -> str:
    """What is wrong, and how to see it again."""
    begin = result.history.begin
    lines = [*result.trouble, *map(str, result.findings[:_LINES])]
    if len(result.findings) > _LINES:
        lines.append(f"... and {len(result.findings) - _LINES} more")
    victims = " ".join(f"{name}={count}" for name, count in begin["counts"].items())
    lines.append(f"judge it again: python -m tests.chaos.run --check {path}")
    lines.append(
        f"run it again:   python -m tests.chaos.run --seed {begin['seed']} --device {begin['device']}"
        f" --victims {victims}"
    )
    return "\n".join(lines)


def share(kills: int, shares: dict[str, int]) -> dict[str, int]:
    """So many strikes, dealt out in these proportions."""
    whole, given, so_far = sum(shares.values()), Counter[str](), 0
    for name, part in shares.items():
        so_far += part
        given[name] = round(kills * so_far / whole) - given.total()
    return dict(given)


def run_rounds(kills: int, seed: int, device: str, shares: dict[str, int]) -> int:
    """Prints a line per round, and at the end the sums and the pauses. 1 when anything was wrong."""
    KEPT.mkdir(parents=True, exist_ok=True)
    pauses, wrong, began = Pauses(), Counter[str](), time.monotonic()
    streams = refused = failed = done = 0
    while done < kills:
        strikes = share(min(ROUND, kills - done), shares)
        path = KEPT / f"seed-{seed}.jsonl"
        result = run(strikes, seed, path, device)
        pauses.add(result.history)
        found = tally(result.findings)
        wrong.update(found)
        streams += len(result.history.disturbed)
        done += sum(strikes.values())
        seed += 1
        refused += result.history.num_refused
        passed = time.monotonic() - began
        print(f"{done} kills, {streams} streams, {refused} refused, {passed:.0f} s", flush=True)
        if result.is_fine:
            path.unlink()
        else:
            failed += 1
            print(describe(result, path), flush=True)
    print(f"{done} kills, {streams} streams:", ", ".join(f"{count} {name}" for name, count in wrong.items()))
    print(table(pauses.rows()))
    return int(failed > 0)


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
    parser.add_argument(
        "--victims",
        nargs="+",
        metavar="NAME=SHARE",
        default=[f"{name}={count}" for name, count in SHARES.items()],
        help="engine, worker, frontend; with another signal as in engine:SIGSTOP=3",
    )
    parser.add_argument("--check", type=Path, metavar="FILE", help="judge a history")
    options = parser.parse_args(arguments)
    if options.check is not None:
        return check_again(options.check)
    shares = _shares(options.victims)
    kills = sum(shares.values()) if options.kills is None else options.kills
    return run_rounds(kills, options.seed, options.device, shares)


if __name__ == "__main__":
    sys.exit(main())
