"""What is kept of a comparison: a file with a line of JSON for each thing that was found out.

{"kind": "limits", ...}     of the machine, measured between runs
{"kind": "model", ...}      the shape of a model, for its roof
{"kind": "run", ...}        one run of one peer
{"kind": "failure", ...}    a peer that could not do something, and why
"""

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.versus.child import Answer
from benchmarks.versus.contention import Shares
from benchmarks.versus.roof import Limits, Shape
from pagewire_bench.figures import percentile
from pagewire_bench.trace import gaps as gaps_of

POSITIONS = (8, 32, 64)
"""From 1. Of these, streams that are shorter have only the first."""


@dataclass(frozen=True)
class Timings:
    """Of the streams of a run, in milliseconds: medians, and the 99th percentile of the gaps."""

    ttft: float
    itl: float
    itl_p99: float
    decode_tokens_per_s: float
    """Of one stream, after its first token."""
    positions: list[float] = field(default_factory=list)
    """When the tokens at POSITIONS came, since their request was sent; none of runs that did not keep it."""


@dataclass(frozen=True)
class Run:
    """Tokens are those of the output; own, others and steal are percent of all cores."""

    model: str
    workload: str
    peer: str
    weights: str
    number: int
    """Of its requests: no two runs of a comparison have the same token ids, but those of different peers."""
    date: str
    versions: dict[str, str]
    seconds: float
    tokens_per_s: float
    own: float
    others: float
    steal: float
    is_quiet: bool
    timings: Timings | None
    """None: the peer does not stream."""


@dataclass(frozen=True)
class Failure:
    """Something that a peer could not do."""

    model: str
    workload: str
    peer: str
    why: str


@dataclass
class Records:
    """All lines of some files."""

    runs: list[Run] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    limits: list[Limits] = field(default_factory=list)
    shapes: dict[str, Shape] = field(default_factory=dict)

    def best_limits(self) -> Limits:
        """The greatest of each: what was reached once is possible."""
        return Limits(
            max(limits.bandwidth for limits in self.limits),
            max(limits.bf16 for limits in self.limits),
            max(limits.int8 for limits in self.limits),
        )


def timings_of(answer: Answer) -> Timings | None:
    """Of one run. Tokens of one message share the time since the last one."""
    first, gaps, rates = [], [], []
    reached: dict[int, list[float]] = {position: [] for position in POSITIONS}
    for sent, arrivals in zip(answer.sent, answer.arrivals, strict=True):
        if len(arrivals) < 2:
            return None
        first.append(1000 * (arrivals[0][0] - sent))
        gaps += [1000 * gap for gap in gaps_of(arrivals)]
        for position, times in reached.items():
            totals = zip(arrivals, accumulate(tokens for _, tokens in arrivals), strict=True)
            times += [1000 * (at - sent) for (at, _), total in totals if total >= position][:1]
        rates.append(sum(tokens for _, tokens in arrivals[1:]) / (arrivals[-1][0] - arrivals[0][0]))
    return Timings(
        ttft=statistics.median(first),
        itl=statistics.median(gaps),
        itl_p99=percentile(gaps, 99),
        decode_tokens_per_s=statistics.median(rates),
        positions=[statistics.median(times) for times in reached.values() if times],
    )


def make_run(answer: Answer, used: Shares, most_disturbance: float, **facts: Any) -> Run:
    """facts: the other fields of Run."""
    tokens = sum(tokens for arrivals in answer.arrivals for _, tokens in arrivals)
    return Run(
        seconds=answer.seconds,
        tokens_per_s=tokens / answer.seconds,
        **asdict(used),
        is_quiet=used.disturbance <= most_disturbance,
        timings=timings_of(answer),
        **facts,
    )


def line_of(kind: str, what: Any, **more: Any) -> str:
    """A line of the file."""
    return json.dumps({"kind": kind, **more, **asdict(what)})


def read(paths: Iterable[Path]) -> Records:
    """All of them together."""
    records = Records()
    for path in paths:
        for line in path.read_text().splitlines():
            _add(records, json.loads(line))
    return records


def _add(records: Records, values: dict[str, Any]) -> None:
    kind = values.pop("kind")
    if kind == "run":
        timings = values.pop("timings")
        records.runs.append(Run(**values, timings=timings and Timings(**timings)))
    elif kind == "failure":
        records.failures.append(Failure(**values))
    elif kind == "limits":
        records.limits.append(Limits(**values))
    else:
        name = values.pop("name")
        records.shapes[name] = Shape(**values)


def that_count(runs: Sequence[Run]) -> list[Run]:
    """Of one figure: the quiet ones; all of them, where none was."""
    return [run for run in runs if run.is_quiet] or list(runs)
