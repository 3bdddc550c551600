"""Runs simulations: python -m tests.simulation.run --seeds 0-999, or --seed 7 --trace. docs/simulation.md."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field

from tests.simulation.disasters import KINDS
from tests.simulation.world import Failed, Report, simulate

_CHUNK = 25
"""Seeds that a process gets at once."""
_LINES = 25
"""Of a failure's trace, unless all are wanted."""


@dataclass
class Totals:
    """Of many simulations."""

    seeds: int = 0
    events: int = 0
    steps: int = 0
    preemptions: int = 0
    most_preemptions: int = 0
    """Of one request."""
    deaths: int = 0
    adoptions: int = 0
    adopted_blocks: int = 0
    adopted_states: int = 0
    virtual_s: float = 0.0
    cpu_s: float = 0.0
    outcomes: Counter[str] = field(default_factory=Counter)
    digests: dict[int, str] = field(default_factory=dict)
    """Of the traces, by seed."""
    poison_deaths: Counter[int] = field(default_factory=Counter)
    """How often the engine died of a request -> requests."""
    pulls: Counter[str] = field(default_factory=Counter)
    """Of blocks of another core, by outcome."""
    failures: list[tuple[int, str]] = field(default_factory=list)
    """Seeds, and what they found."""

    def add(self, report: Report) -> None:
        """One that found nothing."""
        self.seeds += 1
        self.events += report.num_events
        self.steps += report.num_steps
        self.preemptions += report.num_preemptions
        self.most_preemptions = max(self.most_preemptions, report.most_preemptions)
        self.deaths += report.num_deaths
        self.adoptions += report.num_adoptions
        self.adopted_blocks += report.num_adopted_blocks
        self.adopted_states += report.num_adopted_states
        self.virtual_s += report.seconds
        self.cpu_s += report.cpu_seconds
        self.outcomes += report.outcomes
        self.pulls += report.pulls
        self.poison_deaths.update(report.poison_deaths)
        self.digests[report.seed] = report.digest

    def merge(self, others: Totals) -> None:
        """Those of another process."""
        adopted = "adoptions", "adopted_blocks", "adopted_states"
        counts = "seeds", "events", "steps", "preemptions", "deaths", *adopted
        for name in (*counts, "virtual_s", "cpu_s"):
            setattr(self, name, getattr(self, name) + getattr(others, name))
        self.most_preemptions = max(self.most_preemptions, others.most_preemptions)
        self.outcomes += others.outcomes
        self.pulls += others.pulls
        self.poison_deaths += others.poison_deaths
        self.digests |= others.digests
        self.failures += others.failures

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.most_common())
        pulls = ", ".join(f"{count} {outcome}" for outcome, count in self.pulls.most_common())
        poison = ", ".join(f"{many} of {count}" for count, many in sorted(self.poison_deaths.items()))
        return (
            f"{self.seeds} seeds passed, {len(self.failures)} failed\n"
            f"{self.events} events, {self.steps} steps, {self.preemptions} preemptions"
            f" (at most {self.most_preemptions} of one request),"
            f" {self.deaths} deaths of the core, {self.adoptions} workers adopted with"
            f" {self.adopted_blocks} cached blocks and {self.adopted_states} checkpoints of states,"
            f" {self.virtual_s:.0f} s of virtual time\n"
            f"requests: {ends}\n"
            + (f"requests that the engine died of, by deaths: {poison}\n" if poison else "")
            + (f"copies of blocks: {pulls}\n" if pulls else "")
            + f"{self.cpu_s:.1f} s of CPU time, {1e3 * self.cpu_s / max(1, self.seeds):.0f} ms per seed,"
            f" {self.events / max(self.cpu_s, 1e-9):.0f} events per second and core"
        )


def describe(failure: Failed, kind: str, lines: int | None = _LINES) -> str:
    """What happened, what is wrong, and how to see it again. lines: of the trace; None: all."""
    cause = failure.__cause__
    assert cause is not None
    option = f" --kind {kind}" if kind != "plain" else ""
    return (
        "\n".join(failure.trace.lines(lines))
        + "\n"
        + "".join(traceback.format_exception(cause))
        + f"\nseed {failure.seed}: {type(cause).__name__}: {cause}"
        + f"\nagain: python -m tests.simulation.run --seed {failure.seed}{option} --trace\n"
    )


def run_chunk(seeds: Sequence[int], kind: str = "plain") -> Totals:
    """All of these, in this process."""
    totals = Totals()
    for seed in seeds:
        try:
            totals.add(simulate(seed, kind))
        except Failed as failure:
            totals.failures.append((seed, describe(failure, kind)))
    return totals


def run_seeds(seeds: range, processes: int, kind: str = "plain") -> Iterator[Totals]:
    """The totals of so many as are done, again and again."""
    totals = Totals()
    chunks = [seeds[start : start + _CHUNK] for start in range(0, len(seeds), _CHUNK)]
    context = multiprocessing.get_context("spawn")  # what is imported here may have threads
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        for done in as_completed([pool.submit(run_chunk, chunk, kind) for chunk in chunks]):
            totals.merge(done.result())
            yield totals


def _run_one(seed: int, kind: str, *, trace: bool) -> int:
    try:
        report = simulate(seed, kind)
    except Failed as failure:
        print(describe(failure, kind, None if trace else _LINES))
        return 1
    if trace:
        print("\n".join(report.trace.lines()))
    totals = Totals()
    totals.add(report)
    print(f"seed {seed}, trace {report.digest}: {totals}")
    return 0


def _run_many(seeds: range, processes: int, kind: str) -> int:
    began, shown = time.monotonic(), 0
    totals = Totals()
    for totals in run_seeds(seeds, processes, kind):
        for _, text in totals.failures[shown:]:
            print(text, flush=True)
        shown = len(totals.failures)
    print(totals)
    print(f"{time.monotonic() - began:.1f} s with {processes} processes")
    if totals.failures:
        print("failed:", *sorted(seed for seed, _ in totals.failures))
    return int(bool(totals.failures))


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; 1 when a seed fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.run", description=__doc__)
    parser.add_argument("--seed", type=int, help="one seed")
    parser.add_argument("--trace", action="store_true", help="with --seed: print all that happens")
    parser.add_argument("--seeds", type=_range, default=range(1000), help="FIRST-LAST; default: 0-999")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--kind", choices=KINDS, default="plain", help="what goes wrong: disasters.py")
    options = parser.parse_args(arguments)
    if options.seed is not None:
        return _run_one(options.seed, options.kind, trace=options.trace)
    return _run_many(options.seeds, options.processes, options.kind)


if __name__ == "__main__":
    sys.exit(main())
