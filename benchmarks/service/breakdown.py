"""Shows where the time of a workload goes, by the measurements that a service reports.

Its metrics are read before and after a run, so that a run is as it always is. All parts are shares of the
time that the client has measured, from sending the first request until the last token has come:

    forward             the layers of the model, measured by the worker, as the next two are; on a CPU with
                        the vocabulary's matrix, where a step only decodes
    logits, sampling    else the vocabulary's matrix; choosing tokens
    preparing           new rows, rows that end, the inputs of the step
    rest of a step      making the result
    between steps       result to the core, update, schedule, next plan: while there was work
    before and after    client, gRPC and frontend, before the first step and after the last one

The service adds the last two. What frontend, engine core and client compute while the worker does can slow
it down instead, where all share the cores: so the processor time of each is told beside it, as a share of
all cores and per token, and how often its threads are woken and preempted per token (voluntary and
involuntary context switches): each time costs what it costs to come back to cold caches. On
`--device simulated --profile cpu` the pace is that of a model, and nothing else is in the way.
"""

import os
import re
import statistics
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.service.processes import by_role, context_switches, processor_seconds

PHASES = {"forward": "forward", "sample": "logits, sampling", "prepare": "preparing"}
"""By their label."""
_SAMPLE = re.compile(r"^(\w+)(?:\{(.*)\})? (\S+)$")
_PHASE = re.compile(r'phase="(\w+)"')


@dataclass(frozen=True)
class Reading:
    """Seconds and steps since the service started."""

    steps: float
    stepping: float
    waiting: float
    phases: Mapping[str, float]
    processors: Mapping[str, "Processor"]
    """By process, before the metrics were read, which takes milliseconds of it."""
    processors_after: Mapping[str, "Processor"]


@dataclass(frozen=True)
class Processor:
    """What a process has used."""

    seconds: float
    wake_ups: int
    """Voluntary context switches of its threads."""
    preemptions: int
    """Involuntary ones: they depend on what else runs on the machine."""

    @classmethod
    def of(cls, pids: Sequence[int]) -> "Processor":
        """What these processes have used together, without threads that have ended."""
        seconds = sum(map(processor_seconds, pids))
        return cls(seconds, *map(sum, zip(*map(context_switches, pids), strict=True)))

    def __sub__(self, before: "Processor") -> "Processor":
        return Processor(
            self.seconds - before.seconds,
            self.wake_ups - before.wake_ups,
            self.preemptions - before.preemptions,
        )


@dataclass(frozen=True)
class Breakdown:
    """Of one run: shares of its time, in percent."""

    steps: int
    step_ms: float
    parts: Mapping[str, float]
    processors: Mapping[str, float]
    """Of all cores."""
    us_per_token: Mapping[str, float]
    """Of a core, by process."""
    wake_ups_per_token: Mapping[str, float]
    preemptions_per_token: Mapping[str, float]

    @property
    def added(self) -> float:
        """What the service adds to the worker's steps."""
        return self.parts["between steps"] + self.parts["before and after"]


class Meter:
    """Reads the metrics of a service on this machine."""

    def __init__(self, http: str, supervisor: int) -> None:
        """http: HOST:PORT of its metrics. supervisor: its process."""
        self._url = f"http://{http}/metrics"
        self._processes = {"client": [os.getpid()]} | by_role(supervisor)

    def read(self) -> Reading:
        """Now, when nothing runs. What reading takes is not between two readings."""
        before = self._used()
        with urllib.request.urlopen(self._url) as answer:
            page = answer.read().decode()
        return parse(page, before, self._used())

    def _used(self) -> dict[str, Processor]:
        return {role: Processor.of(pids) for role, pids in self._processes.items()}


def parse(page: str, *processors: Mapping[str, Processor]) -> Reading:
    """page: what Prometheus would read, of all engine cores together. processors: before and after that."""
    sums: dict[str, float] = {}
    phases = dict.fromkeys(PHASES, 0.0)
    for sample in filter(None, map(_SAMPLE.match, page.splitlines())):
        name, labels, value = sample[1], sample[2] or "", float(sample[3])
        phase = _PHASE.search(labels)
        if name == "pagewire_worker_phase_seconds_total" and phase:
            phases[phase[1]] += value
        sums[name] = sums.get(name, 0.0) + value
    return Reading(
        sums["pagewire_core_step_seconds_count"],
        sums["pagewire_core_step_seconds_sum"],
        sums["pagewire_worker_waiting_seconds_total"],
        phases,
        *processors,
    )


def between(before: Reading, after: Reading, seconds: float, tokens: int) -> Breakdown:
    """Of a run of so many seconds, that brought so many tokens."""
    stepping, waiting = after.stepping - before.stepping, after.waiting - before.waiting
    parts = {name: after.phases[label] - before.phases[label] for label, name in PHASES.items()}
    parts["rest of a step"] = stepping - sum(parts.values())
    parts["between steps"] = waiting
    parts["before and after"] = seconds - stepping - waiting
    steps = int(after.steps - before.steps)
    all_cores = seconds * (os.cpu_count() or 1)
    used = {name: after.processors[name] - before.processors_after[name] for name in after.processors}
    return Breakdown(
        steps,
        1000 * stepping / steps,
        {name: 100 * part / seconds for name, part in parts.items()},
        {name: 100 * each.seconds / all_cores for name, each in used.items()},
        {name: 1e6 * each.seconds / tokens for name, each in used.items()},
        {name: each.wake_ups / tokens for name, each in used.items()},
        {name: each.preemptions / tokens for name, each in used.items()},
    )


def print_breakdowns(found: Mapping[str, Sequence[Breakdown]]) -> None:
    """A column per workload: medians, and for what the service adds the least and the greatest too."""
    print(f"\n{'% of the time':<33}" + "".join(f"{name:>30}" for name in found))
    first = next(iter(found.values()))[0]
    for part in first.parts:
        _print_row(part, [_middle([run.parts[part] for run in runs]) for runs in found.values()])
    _print_row("the service adds", [spread([run.added for run in runs]) for runs in found.values()])
    _print_row("ms per step", [_middle([run.step_ms for run in runs]) for runs in found.values()])
    _print_row("steps", [f"{statistics.median(run.steps for run in runs):.0f}" for runs in found.values()])
    for process in first.processors:
        cells = [_middle([run.processors[process] for run in runs]) for runs in found.values()]
        _print_row(f"all cores: {process}", cells)
    for process in first.processors:
        cells = [
            f"{spread([run.us_per_token[process] for run in runs], 0)},"
            f" {_middle([run.wake_ups_per_token[process] for run in runs])},"
            f" {_middle([run.preemptions_per_token[process] for run in runs])}"
            for runs in found.values()
        ]
        _print_row(f"us, woken, preempted/token: {process}", cells)


def _print_row(title: str, cells: Sequence[str]) -> None:
    print(f"{title:<33}" + "".join(f"{cell:>30}" for cell in cells))


def _middle(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.2f}"


def spread(values: Sequence[float], digits: int = 2) -> str:
    """The median, and from where to where."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"
