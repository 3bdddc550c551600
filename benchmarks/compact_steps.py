"""Decode steps of a model with weights in 16 and in 12 bits, in turns: what whole steps gain or lose.

    python -m benchmarks.compact_steps MODEL --cpu-kernels avx2 --batch 1,8,32
    python -m benchmarks.compact_steps MODEL --threads 2 --turns 40

Both forms are loaded into one process, and each step of one is followed by the same step of the other. Two
lines per batch size, wall time and CPU time of all threads: milliseconds of a step in both forms, and 16 / 12
bits, of the fastest tenth and of the median. An instruction set that has no weights in 12 bits compares a
form with itself.
"""

import argparse
import time
from dataclasses import replace
from unittest import mock

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

from benchmarks.worker_step import BLOCK_SIZE, BUDGET, plan, random_rows, timed  # noqa: E402
from kernels.cpu.instruction_sets import select, target_set  # noqa: E402
from kernels.cpu.matmul.compact import weight  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from pagewire.ipc.columns import pack_u32  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.cpu.load import load  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402

CLOCKS = {"wall": time.perf_counter, "CPU": time.process_time}


def measure(runners: list[StepExecutor[CpuBackend]], vocab: int, batch: int, prompt: int, turns: int) -> None:
    """Prints the lines of a batch size. runners: with weights in 16 and in 12 bits."""
    rows = random_rows(vocab, batch, prompt, prompt + turns)
    most = BUDGET // prompt
    for runner in runners:
        for first in range(0, batch, most):
            some = range(first, min(batch, first + most))
            runner.execute(plan(some, 0, prompt, rows[some.start : some.stop]))
    times: dict[str, list[list[float]]] = {name: [[], []] for name in CLOCKS}
    for turn in range(turns):
        for form in (0, 1) if turn % 2 else (1, 0):
            used = time.process_time()
            wall = timed(runners[form], plan(range(batch), prompt + turn, 1, []))
            times["wall"][form].append(wall)
            times["CPU"][form].append(1000 * (time.process_time() - used))
    for runner in runners:
        runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32(range(batch))))
    for name, forms in times.items():
        line = f"batch {batch:3}, {name:4}"
        for title, part in (("fastest tenth", 10), ("median", 2)):
            wide, narrow = (sorted(form)[turns // part] for form in forms)
            line += f" | {title} {wide:8.2f} {narrow:8.2f} {wide / narrow:.3f}"
        print(line, flush=True)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--cpu-kernels", default="auto", help="auto or an instruction set of this host")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--batch", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=32)
    parser.add_argument("--turns", type=int, default=40)
    options = parser.parse_args()
    select(options.cpu_kernels)
    chosen = target_set()
    assert chosen is not None
    batches = [int(batch) for batch in options.batch.split(",")]
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder(options.model)),
        device="cpu",
        dtype="bfloat16",
        load_format="auto",
        max_num_seqs=max(batches),
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK_SIZE,
        num_blocks=max(batches) * -(-(options.prompt + options.turns) // BLOCK_SIZE),
    )
    with mock.patch.object(weight, "target_set", lambda: replace(chosen, compact=False)):
        wide, _ = load(initialize, 0, options.threads, lambda what, fraction: None)
    narrow, ready = load(initialize, 0, options.threads, lambda what, fraction: None)
    for batch in batches:
        measure([wide, narrow], ready.model.vocab_size, batch, options.prompt, options.turns)


if __name__ == "__main__":
    main()
