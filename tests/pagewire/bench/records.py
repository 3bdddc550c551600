"""Load tests that did not run, for tests of what is shown of them."""

import random

from pagewire.bench.driver import LevelRun
from pagewire.bench.load import Load
from pagewire.bench.record import BenchRecord
from pagewire.bench.trace import Trace

LOADS = (Load(concurrency=1), Load(concurrency=8))


def made_run(load: Load, factor: float = 1.0, failures: int = 0, seed: int = 0) -> LevelRun:
    """Forty answers of four tokens; factor: of all latencies."""
    draw = random.Random(f"{seed} {load.value}")
    traces = []
    for number in range(40):
        at = 0.1 * number
        arrivals, now = [], at + factor * draw.uniform(0.05, 0.08)
        for _ in range(4):
            arrivals.append((now, 1))
            now += factor * draw.uniform(0.01, 0.02)
        traces.append(Trace(at, at, arrivals, arrivals[-1][0], prompt_tokens=16))
    for trace in traces[:failures]:
        trace.error, trace.arrivals = "RESOURCE_EXHAUSTED QUEUE_FULL", []
    return LevelRun(load, 5.0, traces)


def made_record(factor: float = 1.0, *, failures: int = 0, **about: object) -> BenchRecord:
    """Two levels, within limits of goodput."""
    facts = {"model": "demo", "address": "here:1", "input_len": "16", **about}
    runs = [made_run(load, factor, failures, seed=int(100 * factor)) for load in LOADS]
    return BenchRecord(facts, {"ttft": 75.0}, runs)
