"""Measures how long a step takes in the worker alone, without sockets and scheduler.

    python -m benchmarks.steps.worker_step                           # the demo model
    python -m benchmarks.steps.worker_step MODEL --threads 2 --batch 1,32 --dummy
    python -m benchmarks.steps.worker_step MODEL --quantization int4
    python -m benchmarks.steps.worker_step MODEL --batch 48,63,64,65,66,128,256 --threads 1 --temperature 0.8

One line per batch size: the prefill of all prompts, in steps of at most 8192 tokens, and the decode
steps that follow (median and 10th percentile), with the microseconds of a decode step that are not of
compiled programs but around them: reading the plan, sampling, the result. Processor time is that of all
threads, its 10th percentile, which other processes change least; where that of a batch is more than 3 %
beyond its share, by rows, of the batch before it, the line says by how much.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

import numpy as np  # noqa: E402

from benchmarks.steps.plans import new_row, plan, removal  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.config import WorkerConfig  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402
from worker.load import load  # noqa: E402
from worker.platforms.cpu import CpuPlatform  # noqa: E402

BLOCK_SIZE = 16
BUDGET = 8192


def random_rows(
    vocab_size: int, batch: int, prompt: int, positions: int, shared: int = 0
) -> list[worker_pb2.NewRow]:
    """Prompts of random tokens, greedy. positions: that each row has blocks for. shared: blocks that all rows
    begin with, and their tokens."""
    rng, blocks, common = np.random.default_rng(0), -(-positions // BLOCK_SIZE), shared * BLOCK_SIZE
    prefix = rng.integers(0, vocab_size, common).tolist()
    return [
        new_row(
            row,
            [*prefix, *rng.integers(0, vocab_size, prompt - common).tolist()],
            prompt,
            [*range(shared), *range(row * blocks + shared, (row + 1) * blocks)],
        )
        for row in range(batch)
    ]


def timed(
    runner: StepExecutor[CpuBackend],
    step: worker_pb2.StepPlan,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Milliseconds."""
    began = clock()
    runner.execute(step)
    return 1000 * (clock() - began)


@contextmanager
def programs_timed() -> Iterator[list[float]]:
    """Adds up the milliseconds that programs of compiled operations take, in the list's one number."""
    from kernels.cpu.runtime.thread_pool import Team

    spent, run, call = [0.0], Team.run, Team.call

    def timed_run(team: Team, work: Any) -> None:
        began = time.perf_counter()
        run(team, work)
        spent[0] += 1000 * (time.perf_counter() - began)

    def timed_call(team: Team, function: Any, job: Any) -> None:
        began = time.perf_counter()
        call(team, function, job)
        spent[0] += 1000 * (time.perf_counter() - began)

    with patch.object(Team, "run", timed_run), patch.object(Team, "call", timed_call):
        yield spent


def measure(
    runner: StepExecutor[CpuBackend],
    vocab_size: int,
    batch: int,
    options: argparse.Namespace,
    share: float = float("inf"),
) -> float:
    """Prints one line. share: the milliseconds of processor time that a row should cost. Returns those of a
    decode step."""
    prompt, output = options.prompt, options.output
    new_rows = random_rows(vocab_size, batch, prompt, prompt + output)
    for row in new_rows:
        row.sampling.temperature = options.temperature
    most = BUDGET // prompt
    prefill = 0.0
    for first in range(0, batch, most):
        rows = range(first, min(batch, first + most))
        prefill += timed(runner, plan(rows, 0, prompt, new_rows[rows.start : rows.stop]))
    decode, around, processor = [], [], []
    with programs_timed() as programs:
        for step in range(output - 1):
            programs[0], began = 0.0, time.process_time()
            decode.append(timed(runner, plan(range(batch), prompt + step, 1)))
            processor.append(1000 * (time.process_time() - began))
            around.append(1000 * (decode[-1] - programs[0]))
    runner.execute(removal(range(batch)))
    median, low = statistics.median(decode), statistics.quantiles(decode, n=10)[0]
    outside, least = statistics.median(around), statistics.quantiles(around, n=10)[0]
    cost = statistics.quantiles(processor, n=10)[0]
    beyond = 100 * (cost / (share * batch) - 1)
    print(
        f"batch {batch:4}: prefill of {batch * prompt:6} tokens {prefill:8.1f} ms;"
        f" decode step {median:7.2f} ms (p10 {low:.2f}), {1000 * batch / median:7.0f} tokens/s,"
        f" {outside:.0f} us around programs (p10 {least:.0f}), {cost:.2f} ms of processors"
        + (f", {beyond:.0f} % beyond its share" if beyond > 3 else "")
    )
    return cost


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", default="1,8,32,256")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--output", type=int, default=60)
    parser.add_argument("--temperature", type=float, default=0.0, help="0: greedy")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="", choices=["", "int8", "int4"])
    parser.add_argument("--dummy", action="store_true", help="random weights")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder(options.model)),
        device="cpu",
        dtype=options.dtype,
        load_format="dummy" if options.dummy else "auto",
        quantization=options.quantization,
        max_num_seqs=max(batches),
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK_SIZE,
        num_blocks=max(batches) * -(-(options.prompt + options.output) // BLOCK_SIZE),
    )
    runner, ready = load(initialize, CpuPlatform(WorkerConfig(threads=options.threads)))
    share = float("inf")
    for batch in batches:
        share = measure(runner, ready.model.vocab_size, batch, options, share) / batch


if __name__ == "__main__":
    main()
