"""Decoding steps beside a process that takes a core now and then, with and without
kernels.cpu.runtime.straggler_recovery.

    python -m benchmarks.stragglers MODEL --batch 1,32

The other process computes for some time, then sleeps, as a frontend and an engine core do for each token.
Steps in which units are computed twice and steps in which every thread waits for the others take turns, ten
at a time, in one process; so both have the same weights at the same places, and the same memory.
"""

import argparse
import contextlib
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from worker.cpu.threads import prepare_threads

prepare_threads()  # before torch is imported

from benchmarks.worker_step import BLOCK_SIZE, BUDGET, plan, random_rows, timed  # noqa: E402
from pagewire.checkpoints.paths import checkpoint_folder  # noqa: E402
from pagewire.internal.v1 import worker_pb2  # noqa: E402
from pagewire.ipc.columns import pack_u32  # noqa: E402
from worker.cpu.backend import CpuBackend  # noqa: E402
from worker.cpu.load import load  # noqa: E402
from worker.cpu.program.buffers import FEW  # noqa: E402
from worker.executor.executor import StepExecutor  # noqa: E402

TURN = 10
BUSY = """
import time
while True:
    end = time.perf_counter() + {busy}
    while time.perf_counter() < end:
        pass
    time.sleep({idle})
"""


@contextlib.contextmanager
def other_process(busy_ms: float, idle_ms: float) -> Iterator[None]:
    """As long as the block runs; none if it is never busy."""
    if not busy_ms:
        yield
        return
    code = BUSY.format(busy=busy_ms / 1000, idle=idle_ms / 1000)
    with subprocess.Popen([sys.executable, "-c", code]) as process:
        try:
            yield
        finally:
            process.kill()


def measure(
    runner: StepExecutor[CpuBackend],
    vocab_size: int,
    batch: int,
    prompt: int,
    steps: int,
    loads: list[tuple[float, float]],
) -> None:
    """Prints a line for each load: busy and idle milliseconds."""
    runner.execute(
        plan(range(batch), 0, prompt, random_rows(vocab_size, batch, prompt, prompt + len(loads) * steps))
    )
    program = runner.backend.model.programs[batch <= FEW].program  # type: ignore[union-attr]
    slack, position = program.slack, prompt
    for busy, idle in loads:
        times: dict[bool, list[float]] = {True: [], False: []}
        with other_process(busy, idle):
            for step in range(steps):
                twice = step // TURN % 2 == 1
                program.slack = slack if twice else 0
                times[twice].append(timed(runner, plan(range(batch), position, 1, [])))
                position += 1
        alone, together = (statistics.mean(times[twice]) for twice in (False, True))
        what = f"{busy} ms of every {busy + idle} taken" if busy else "no other process"
        print(f"batch {batch:3}, {what:24}: waiting {alone:6.2f} ms, computing twice {together:6.2f} ms")
    program.slack = slack
    runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32(range(batch))))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", default="1,32")
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--steps", type=int, default=200, help="for each load")
    parser.add_argument("--busy-ms", type=float, default=0.4)
    parser.add_argument("--idle-ms", type=float, default=2.0)
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    loads = [(0.0, 0.0), (options.busy_ms, options.idle_ms)] * 2
    positions = options.prompt + len(loads) * options.steps
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder(options.model)),
        device="cpu",
        dtype="bfloat16",
        load_format="auto" if list(Path(options.model).glob("*.safetensors")) else "dummy",
        max_num_seqs=max(batches),
        max_num_batched_tokens=max(BUDGET, max(batches) * options.prompt),
        block_size=BLOCK_SIZE,
        num_blocks=max(batches) * -(-positions // BLOCK_SIZE),
    )
    runner, ready = load(initialize, 0, options.threads, lambda what, fraction: None)
    for batch in batches:
        measure(runner, ready.model.vocab_size, batch, options.prompt, options.steps, loads)


if __name__ == "__main__":
    main()
