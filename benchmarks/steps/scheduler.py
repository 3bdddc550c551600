"""Measures the scheduler: CPU time of schedule() and update() per step, without sockets and worker.

    python -m benchmarks.steps.scheduler [--steps 200] [--json FILE]

Two loads for each number of running sequences. "decode": nothing changes but the tokens. "churn": each
step one in a hundred sequences (at least one) is aborted, and a new request with a prompt of 100 tokens
takes its place. Then, how fast the pool hands out blocks and takes them back.
"""

import argparse
import json
import statistics
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from engine_core.context import Limits
from engine_core.intake.validation import make_request
from engine_core.kv_cache.block_pool import BlockPool
from engine_core.request import Request
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import encode_plan
from engine_core.step.result import Result
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2

RUNNING = (16, 256, 1024, 4096)
BLOCK_SIZE = 16
PROMPT = 100
ENDLESS = 1 << 20
SAMPLING = generation_pb2.SamplingParams(
    temperature=0,
    top_p=1,
    top_k=0,
    min_p=0,
    typical_p=1,
    frequency_penalty=0,
    presence_penalty=0,
    repetition_penalty=1,
    seed=0,
    n=1,
)
Figures = dict[str, float]


class Load:
    """A scheduler with so many running sequences."""

    def __init__(self, running: int, steps: int) -> None:
        blocks = running * ((PROMPT + steps) // BLOCK_SIZE + 3)
        self._limits = Limits(
            vocab_size=1 << 17,
            max_model_len=ENDLESS,
            max_num_seqs=running,
            eos_token_ids=frozenset((2,)),
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
        )
        self.scheduler = Scheduler(
            num_blocks=blocks,
            block_size=BLOCK_SIZE,
            max_num_seqs=running,
            max_num_batched_tokens=max(8192, running * PROMPT),
        )
        self._handles = 0
        self.requests: deque[Request] = deque()  # oldest first
        for _ in range(running):
            self.arrive()
        self.tokens = list(range(1000, 1000 + running))
        self.step()

    def arrive(self) -> None:
        """A request of one sequence; the first token differs, so that no two prompts are alike."""
        self._handles += 1
        message = engine_pb2.AddRequest(
            handle=self._handles,
            request_id=str(self._handles),
            prompt_token_ids=pack_u32([self._handles % (1 << 17), *range(3, 2 + PROMPT)]),
            sampling=SAMPLING,
            stopping=generation_pb2.StoppingCriteria(max_tokens=ENDLESS, min_tokens=0),
        )
        request = make_request(message, b"frontend", 0.0, self._limits)
        self.requests.append(request)
        self.scheduler.add(request)

    def step(self) -> tuple[float, float, float]:
        """Seconds of schedule(), of update(), and of encoding plan and outputs."""
        scheduler = self.scheduler
        began = time.thread_time()
        plan = scheduler.schedule(1.0)
        planned = time.thread_time()
        result = Result(plan.step, self.tokens[: len(plan.sample_rows)])
        scheduler.update(result)
        updated = time.thread_time()
        encode_plan(plan).SerializeToString()
        for _, message in encode_outputs(scheduler.take_outputs(), 1, scheduler.step):
            message.SerializeToString()
        return planned - began, updated - planned, time.thread_time() - updated


def measure(running: int, steps: int, churn: bool) -> Figures:
    """Over the steps, in microseconds per running sequence: medians, and the mean of schedule() and update().

    All sequences of a load fill their blocks in the same steps: a median does not see what that costs.
    """
    load = Load(running, steps)
    turnover = max(1, running // 100) if churn else 0
    parts = []
    for _ in range(steps):
        for _ in range(turnover):
            load.scheduler.abort(load.requests.popleft())
            load.arrive()
        parts.append(load.step())
    schedule, update, encode = (statistics.median(part) * 1e6 / running for part in zip(*parts, strict=True))
    mean = statistics.fmean(part[0] + part[1] for part in parts) * 1e6 / running
    return {
        "schedule": schedule,
        "update": update,
        "sum": schedule + update,
        "mean": mean,
        "encode": encode,
    }


def blocks_per_second(repeats: int = 200, count: int = 1000) -> float:
    """Blocks allocated and freed, by tables of 8."""
    pool = BlockPool(count)
    rates = []
    for _ in range(repeats):
        began = time.thread_time()
        tables = [pool.allocate(8) for _ in range(count // 8)]
        for table in tables:
            pool.free(table)
        rates.append(count / (time.thread_time() - began))
    return statistics.median(rates)


def rows(steps: int) -> Iterator[tuple[str, int, Figures]]:
    """One for each line of the table."""
    for load, churn in (("decode", False), ("churn", True)):
        for running in RUNNING:
            yield load, running, measure(running, steps if running < 2000 else steps // 4, churn)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    print("µs per running sequence and step: medians, and the mean of schedule() + update()")
    print("| load | running | schedule | update | sum | mean | encoding |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    results = []
    for load, running, figures in rows(arguments.steps):
        cells = " | ".join(f"{figures[name]:.2f}" for name in ("schedule", "update", "sum", "mean", "encode"))
        print(f"| {load} | {running} | {cells} |", flush=True)
        results.append({"load": load, "running": running, **figures})
    rate = blocks_per_second()
    print(f"blocks allocated and freed: {rate / 1e6:.1f} million per second")
    if arguments.json:
        arguments.json.write_text(json.dumps({"steps": results, "blocks_per_second": rate}, indent=1))


if __name__ == "__main__":
    main()
