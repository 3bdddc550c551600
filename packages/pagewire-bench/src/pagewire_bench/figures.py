"""Figures of a level: percentiles of latencies, throughput, goodput, errors."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pagewire_bench.driver import LevelRun
from pagewire_bench.trace import Trace

LATE_S = 0.02
"""A request that was sent so much later than it was due says something about the generator of the load."""
TAIL = 99


@dataclass(frozen=True)
class Percentiles:
    """Percentiles of one kind of latency, in milliseconds. All 0 where there is none."""

    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    mean: float = 0.0

    @classmethod
    def of(cls, seconds: Sequence[float]) -> "Percentiles":
        """Returns the percentiles of some latencies in seconds."""
        if not seconds:
            return cls()
        ordered = sorted(seconds)
        p50, p90, p99 = (1000 * at_rank(ordered, percent) for percent in (50, 90, 99))
        return cls(p50, p90, p99, 1000 * sum(ordered) / len(ordered))


@dataclass(frozen=True)
class LevelFigures:
    """Figures of all runs of one level. Latencies are those of complete answers, in milliseconds.

    ttft: from when a request was due to its first token. itl: between tokens. tpot: per request, the mean
    time per token after the first. e2e: from when it was due to its last token. goodput: complete answers
    per second that meet every limit, good_share: their share of all requests; None without limits. errors:
    number of requests by kind. late: share of the requests that were sent LATE_S or more after they were due.
    """

    requests: int
    complete: int
    errors: Mapping[str, int]
    seconds: float
    requests_per_s: float
    tokens_per_s: float
    prompt_tokens_per_s: float
    ttft: Percentiles
    itl: Percentiles
    tpot: Percentiles
    e2e: Percentiles
    late: float
    goodput: float | None = None
    good_share: float | None = None


def at_rank(ordered: Sequence[float], percent: int) -> float:
    """Returns a percentile of sorted values, by the nearest rank."""
    return ordered[min(len(ordered) - 1, round(percent / 100 * (len(ordered) - 1)))]


def percentile(values: Sequence[float], percent: int) -> float:
    """Returns a percentile by the nearest rank; NaN of nothing."""
    return at_rank(sorted(values), percent) if values else math.nan


def is_good(trace: Trace, goals: Mapping[str, float]) -> bool:
    """True if an answer is complete and meets every limit. goals: milliseconds; "itl" is met when 99 % of the
    answer's own inter-token latencies are below it."""
    if trace.error:
        return False
    gaps = trace.gaps()
    found = {
        "ttft": trace.first,
        "itl": percentile(gaps, TAIL) if gaps else 0.0,
        "tpot": trace.per_token or 0.0,
        "e2e": trace.latency,
    }
    return all(1000 * found[name] <= limit for name, limit in goals.items())


def figures_of(runs: Sequence[LevelRun], goals: Mapping[str, float]) -> LevelFigures:
    """Returns the figures of all runs of one level together."""
    traces = [trace for run in runs for trace in run.traces]
    complete = [trace for trace in traces if not trace.error]
    seconds = sum(run.seconds for run in runs)
    good = sum(is_good(trace, goals) for trace in complete) if goals else None
    return LevelFigures(
        requests=len(traces),
        complete=len(complete),
        errors=dict(Counter(trace.error for trace in traces if trace.error).most_common()),
        seconds=seconds,
        requests_per_s=len(complete) / seconds,
        tokens_per_s=sum(trace.tokens for trace in traces) / seconds,
        prompt_tokens_per_s=sum(trace.prompt_tokens for trace in complete) / seconds,
        ttft=Percentiles.of([trace.first for trace in complete]),
        itl=Percentiles.of([gap for trace in complete for gap in trace.gaps()]),
        tpot=Percentiles.of([each for trace in complete if (each := trace.per_token) is not None]),
        e2e=Percentiles.of([trace.latency for trace in complete]),
        late=sum(trace.sent - trace.due >= LATE_S for trace in traces) / max(len(traces), 1),
        goodput=None if good is None else good / seconds,
        good_share=None if good is None else good / max(len(traces), 1),
    )
