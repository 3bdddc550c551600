"""Every bug, and the test that finds it: python -m tests.mutants.run. docs/testing.md.

Each bug is put into a copy of the tree, one at a time, and the tests that have to notice run there, until the
first one fails. Before that, every bug must match the source, and the tests pass without bugs.
"""

import argparse
import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant
from tests.simulation import mutants as simulated

ROOT = Path(__file__).parents[2]
PATIENCE_S = 600
"""What the tests for one bug may take: a bug may make them wait."""
TEST_PATIENCE_S = 120
"""... and a single one of them."""
_LEFT_OUT = (".git", ".venv", "build", "dist", ".*_cache", ".hypothesis", "node_modules")
_PASSED, _FAILED = 0, 1
"""Exit codes of pytest."""


@dataclass(frozen=True)
class Outcome:
    """What became of one bug."""

    name: str
    caught_by: str
    """The test that failed; empty if none did."""
    seconds: float


@contextmanager
def copy_of_the_tree() -> Iterator[Path]:
    """A folder with all sources and tests."""
    with tempfile.TemporaryDirectory(prefix="mutant-") as folder:
        copy = Path(folder) / "tree"
        shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*_LEFT_OUT))
        yield copy


def run_tests(tree: Path, tests: Sequence[str]) -> "subprocess.CompletedProcess[str]":
    """Until the first failure."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    options = ["-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", f"--timeout={TEST_PATIENCE_S}"]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    try:
        return subprocess.run(
            command, cwd=tree, env=environment, capture_output=True, text=True, timeout=PATIENCE_S
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, _FAILED, "FAILED by waiting too long", "")


def write(path: Path, source: str) -> None:
    """Python knows bytecode for that of a source by the second of its change: each change has another one."""
    changed = int(path.stat().st_mtime) + 2
    path.write_text(source, encoding="utf-8")
    os.utime(path, (changed, changed))


def find(mutant: Mutant, tree: Path) -> Outcome:
    """Puts the bug in, runs its tests, and takes it out again."""
    began = time.monotonic()
    path, changed = mutant.mutated(tree)
    sound = path.read_text(encoding="utf-8")
    write(path, changed)
    try:
        run = run_tests(tree, mutant.test_paths(tree))
    finally:
        write(path, sound)
    caught_by = ""
    if run.returncode not in (_PASSED, _FAILED):
        caught_by = "" if "error" not in run.stdout else f"pytest cannot run (exit code {run.returncode})"
    elif run.returncode == _FAILED:
        first = re.search(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", run.stdout, re.MULTILINE)
        caught_by = first[1] if first else "a failure without a name"
    return Outcome(mutant.name, caught_by, time.monotonic() - began)


def find_all(mutants: Sequence[Mutant], processes: int) -> Iterator[Outcome]:
    """Each as soon as it is known, in the order of the list."""
    trees: SimpleQueue[Path] = SimpleQueue()

    def find_in_some_tree(mutant: Mutant) -> Outcome:
        tree = trees.get()
        try:
            return find(mutant, tree)
        finally:
            trees.put(tree)

    with copy_of_the_tree() as first, copy_of_the_tree() as second, ThreadPoolExecutor(processes) as pool:
        for tree in (first, second)[:processes]:
            trees.put(tree)
        yield from pool.map(find_in_some_tree, mutants)


def unmatched(mutants: Sequence[Mutant]) -> Iterator[str]:
    """What is wrong with each bug that cannot be made in today's source."""
    names = set[str]()
    for mutant in mutants:
        try:
            path, changed = mutant.mutated(ROOT)
            if ast.dump(ast.parse(changed)) == ast.dump(ast.parse(path.read_text(encoding="utf-8"))):
                yield f"{mutant.name}: changes nothing"
            mutant.test_paths(ROOT)
        except (ValueError, SyntaxError) as error:
            yield str(error)
        if mutant.name in names:
            yield f"{mutant.name}: a second bug of this name"
        names.add(mutant.name)


def check_baseline(mutants: Sequence[Mutant]) -> bool:
    """Whether the tests pass where there is no bug; prints what does not."""
    tests = sorted({test for mutant in mutants for test in mutant.test_paths(ROOT)})
    with copy_of_the_tree() as tree:
        run = run_tests(tree, tests)
    if run.returncode != _PASSED:
        print(run.stdout[-4000:], run.stderr[-2000:], sep="\n")
    return run.returncode == _PASSED


def simulate(name: str) -> Outcome:
    """One of the simulation's bugs, found by a seed."""
    began = time.monotonic()
    failure = simulated.find(name)
    found = "" if failure is None else f"tests/simulation, seed {failure.seed}"
    return Outcome(f"{name} (simulated)", found, time.monotonic() - began)


def print_row(outcome: Outcome) -> None:
    """Of the table."""
    print(f"| {outcome.name} | {outcome.caught_by or '**no test**'} | {outcome.seconds:.1f} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when a bug survives or does not match the source, or when tests fail without one."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run", description=__doc__)
    parser.add_argument("--only", default="", metavar="WORDS", help="bugs with these words in their names")
    parser.add_argument("--processes", type=int, choices=(1, 2), default=2)
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a bug first")
    parser.add_argument("--check", action="store_true", help="only check that each bug matches the source")
    options = parser.parse_args(arguments)
    mutants = [mutant for mutant in MUTANTS if options.only in mutant.name]
    wrong = list(unmatched(mutants))
    print(*wrong, sep="\n", end="\n" if wrong else "")
    if wrong or options.check:
        return int(bool(wrong))
    if not options.no_baseline and not check_baseline(mutants):
        print("these tests fail without any bug")
        return 1
    print("| bug | caught by | seconds |\n| --- | --- | --- |", flush=True)
    survivors = total = 0
    for outcome in find_all(mutants, options.processes):
        print_row(outcome)
        survivors += not outcome.caught_by
        total += 1
    for name in simulated.MUTANTS:
        if options.only in name:
            outcome = simulate(name)
            print_row(outcome)
            survivors += not outcome.caught_by
            total += 1
    print(f"\n{total} bugs, {survivors} of them survive")
    return int(survivors > 0)


if __name__ == "__main__":
    sys.exit(main())
