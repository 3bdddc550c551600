"""How well the core predicts the wait of a request, in virtual time on a simulated H200 with Llama-3-8B.

    python -m benchmarks.deadlines [--seconds 60] [--json FILE]

Requests arrive at random for a while, more of them than the engine can serve; all are predicted, none is
refused, and then it is known how long each has waited. Of those that waited at least 0.1 s: predicted
over actual wait, median and the tenths at both ends. With a deadline of 5 s for all: the part of them that
would have been refused although they would have been in time (wrongly), and the part that would have been
taken although they would not (in vain).
"""

import argparse
import json
import random
import statistics
import tempfile
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import numpy as np

from benchmarks.pipeline import LLAMA_3_8B
from benchmarks.scheduler import SAMPLING
from engine_core.identity import Limits
from engine_core.intake.deadlines import predicted_wait
from engine_core.intake.validation import make_request
from engine_core.queue.token_counters import EQUAL, Weights
from engine_core.request import Request
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2
from worker.families.registry import read_model_config
from worker.simulated.profiles import find_profile
from worker.simulated.roofline import Roofline
from worker.simulated.weights import count_weights

DEADLINE_S = 5.0
WORTH_MEASURING_S = 0.1
BLOCK_SIZE = 16
LIMITS = Limits(
    vocab_size=1 << 17,
    max_model_len=8192,
    max_num_seqs=1024,
    eos_token_ids=frozenset((2,)),
    num_blocks=1 << 20,  # which only beam searches are measured against
    block_size=BLOCK_SIZE,
)


@dataclass(frozen=True)
class Load:
    """Requests per second and what they are; the engine that they meet."""

    name: str
    per_second: float
    prompt: tuple[int, int]
    output: tuple[int, int]
    tenants: str = "a"  # one of these letters each
    priorities: tuple[int, ...] = (0,)
    rows: int = 256
    blocks: int = 16_384
    budget: int = 2048
    weights: Weights = EQUAL


UNEQUAL = Weights(tenants={"b": 2})
LOADS = (
    Load("rows", 80, (50, 500), (50, 400), rows=64),
    Load("blocks", 60, (200, 2000), (50, 400), blocks=6_000),
    Load("prompts", 25, (1000, 6000), (4, 40)),
    Load("tenants", 80, (50, 500), (50, 400), rows=64, tenants="aaaaaaaab", weights=UNEQUAL),
    Load("classes", 80, (50, 500), (50, 400), rows=64, priorities=(0, 0, 0, -1)),
)


def h200() -> Roofline:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(LLAMA_3_8B | {"vocab_size": LIMITS.vocab_size}))
        config = read_model_config(Path(folder))
    return Roofline(config, count_weights(config), 2, find_profile("h200"))


def draw_requests(load: Load, seconds: float, draw: random.Random) -> list[Request]:
    """In order of arrival."""
    requests, now = [], 0.0
    for number in count(1):
        now += draw.expovariate(load.per_second)
        if now > seconds:
            return requests
        prompt = [number % LIMITS.vocab_size] + [3] * (draw.randint(*load.prompt) - 1)
        message = engine_pb2.AddRequest(
            handle=number,
            request_id=str(number),
            prompt_token_ids=pack_u32(prompt),
            sampling=SAMPLING,
            stopping=generation_pb2.StoppingCriteria(max_tokens=draw.randint(*load.output), min_tokens=0),
            tenant=draw.choice(load.tenants),
            priority=draw.choice(load.priorities),
        )
        requests.append(make_request(message, b"frontend", now, LIMITS))
    raise AssertionError("there is no last number")


def run(load: Load, seconds: float, roofline: Roofline) -> list[tuple[float, float]]:
    """(predicted, actual) wait of every request, in seconds."""
    scheduler = Scheduler(
        num_blocks=load.blocks,
        block_size=BLOCK_SIZE,
        max_num_seqs=load.rows,
        max_num_batched_tokens=load.budget,
        weights=load.weights,
    )
    arriving = deque(draw_requests(load, seconds, random.Random(load.name)))
    predicted: dict[int, float] = {}  # by handle
    waits: list[tuple[float, float]] = []
    now = 0.0
    while arriving or scheduler.requests:
        if not scheduler.requests:
            now = max(now, arriving[0].arrival)
        while arriving and arriving[0].arrival <= now:
            request = arriving.popleft()
            predicted[request.handle] = predicted_wait(request, scheduler)
            scheduler.add(request)
        plan = scheduler.schedule(now)
        started = scheduler.take_outputs().started
        waits += [(predicted[start.request.handle], start.queued) for start in started]
        now += step_seconds(plan, roofline)
        scheduler.update(Result(plan.step, [5] * len(plan.sample_rows)))
    return waits


def step_seconds(plan: Plan, roofline: Roofline) -> float:
    return roofline.seconds(np.array(plan.starts), np.array(plan.counts), len(plan.sample_rows))


def figures(waits: list[tuple[float, float]]) -> dict[str, float]:
    """What the table shows of a load."""
    ratios = sorted(predicted / actual for predicted, actual in waits if actual >= WORTH_MEASURING_S)
    tenths = statistics.quantiles(ratios, n=10)
    wrongly = sum(predicted > DEADLINE_S >= actual for predicted, actual in waits)
    in_vain = sum(predicted <= DEADLINE_S < actual for predicted, actual in waits)
    return {
        "requests": len(waits),
        "longest": max(actual for _, actual in waits),
        "p10": tenths[0],
        "median": statistics.median(ratios),
        "p90": tenths[-1],
        "wrongly": wrongly / len(waits),
        "in_vain": in_vain / len(waits),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    roofline, results = h200(), []
    print("| load | requests | longest wait | p10 | median | p90 | wrongly | in vain |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for load in LOADS:
        found = figures(run(load, arguments.seconds, roofline))
        print(
            "| {name} | {requests} | {longest:.1f} s | {p10:.2f} | {median:.2f} | {p90:.2f}"
            " | {wrongly:.1%} | {in_vain:.1%} |".format(name=load.name, **found),
            flush=True,
        )
        results.append({"load": load.name, **found})
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
