"""What a step costs that verifies a draft, beside one that computes a single position of the same row.

    python -m benchmarks.verified_positions                                  # the demo model
    python -m benchmarks.verified_positions MODEL --dummy --contexts 100,2000 --threads 2
    python -m benchmarks.verified_positions MODEL --threads 1 --processor-time      # beside other load
    python -m benchmarks.verified_positions MODEL --positions 1,8,9,16

Steps of 1, 2, 4 and 8 positions, or of those named, take turns, in the worker alone; all of a draft is
refused, so that each step moves on by one token. A ratio is the median, over all turns, of a step beside the
step of one position in its turn, or of the first number named. Logits are computed and sampled at each
position of a draft up to the first that is refused.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.worker_step import BLOCK_SIZE, BUDGET, plan, random_rows, timed  # prepares threads
from kernels.ops.attention.ragged import Integers
from pagewire.checkpoints.paths import checkpoint_folder
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.speculation import Speculation
from worker.cpu.backend import CpuBackend
from worker.cpu.load import load
from worker.executor.executor import StepExecutor
from worker.speculation.drafts import StepDrafts
from worker.speculation.speculator import Speculator


class WrongSpeculator(Speculator):
    """Drafts as much as there is room for: a token that is hardly ever right."""

    def _draft(self, rows: list[int], most: list[int]) -> list[list[int]]:
        """See Speculator."""
        return [[0] * length for length in most]

    def judge(self, rows: Integers, drafts: StepDrafts, counts: Integers) -> None:
        """Whatever becomes of them, drafts stay as long."""
        if self._states is not None:
            self._states.accept(rows, np.maximum(counts - 1, 0))

    def methods(self, rows: Integers, drafts: StepDrafts) -> list[int]:
        """See Speculator."""
        return [0] * len(rows)

    def next_counts(self, rows: Integers) -> Sequence[int]:
        """See Speculator."""
        return ()


def verifying(start: int, count: int) -> worker_pb2.StepPlan:
    """A step of row 0 that computes so many positions from `start` on, and samples from all of them."""
    step = plan(range(1), start, count, [])
    step.sample_counts = pack_u32([count])
    return step


def measure(
    runner: StepExecutor[CpuBackend],
    vocab_size: int,
    context: int,
    turns: int,
    positions: list[int],
    clock: Callable[[], float],
) -> str:
    """Returns a row of the table. positions: of the steps of a turn."""
    length = context + turns * len(positions) + max(positions)
    new_rows = random_rows(vocab_size, 1, context, length + BLOCK_SIZE)
    for start in range(0, context, BUDGET):
        end = min(context, start + BUDGET)
        step = plan(range(1), start, end - start, new_rows if not start else [])
        if end < context:
            step.sample_rows = step.sample_sources = b""
        runner.execute(step)
    at, times = context, []
    for _ in range(turns):
        turn = []
        for count in positions:
            turn.append(timed(runner, verifying(at, count), clock))
            at = int(runner.rows.num_tokens[0]) - 1
        times.append(turn)
    runner.execute(worker_pb2.StepPlan(removed_rows=pack_u32([0])))
    ratios = [
        statistics.median(turn[index] / turn[0] for turn in times) for index in range(1, len(positions))
    ]
    single = statistics.median(turn[0] for turn in times)
    return f"| {context:,} | {single:.2f} | " + " | ".join(f"{ratio:.2f}" for ratio in ratios) + " |"


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("model", nargs="?", default="demo")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--contexts", default="100,1000")
    parser.add_argument("--positions", default="1,2,4,8")
    parser.add_argument("--turns", type=int, default=40)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--dummy", action="store_true", help="random weights")
    parser.add_argument("--processor-time", action="store_true", help="of all threads together")
    options = parser.parse_args()
    clock = time.process_time if options.processor_time else time.perf_counter
    contexts = [int(context) for context in options.contexts.split(",")]
    positions = [int(count) for count in options.positions.split(",")]
    longest = max(contexts) + options.turns * len(positions) + 2 * max(positions) + 2 * BLOCK_SIZE
    initialize = worker_pb2.Initialize(
        model_path=str(checkpoint_folder(options.model)),
        device="cpu",
        dtype=options.dtype,
        load_format="dummy" if options.dummy else "auto",
        quantization=options.quantization,
        max_num_seqs=1,
        max_num_batched_tokens=BUDGET,
        block_size=BLOCK_SIZE,
        num_blocks=-(-longest // BLOCK_SIZE),
        speculation=f"lookup:tokens={max(1, max(positions) - 1)}",  # states of rows have room for as many
    )
    loaded, ready = load(initialize, 0, options.threads, lambda what, fraction: None)
    speculator = WrongSpeculator(
        Speculation("lookup", tokens=max(positions)), [], loaded.rows, states=loaded.backend.states
    )
    runner = StepExecutor(loaded.rows, loaded.backend, BUDGET, speculator)
    first, *others = positions
    print(f"| context | ms, positions: {first} | " + " | ".join(map(str, others)) + " |")
    print("| ---: " * (1 + len(positions)) + "|")
    for context in contexts:
        print(measure(runner, ready.model.vocab_size, context, options.turns, positions, clock), flush=True)


if __name__ == "__main__":
    main()
