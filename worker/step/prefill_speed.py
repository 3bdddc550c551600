"""What the engine core weighs recomputing against copying with, measured on the machine that does it."""

from collections.abc import Callable

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from worker.cpu.runner import GREEDY

LONG_ENOUGH_US = 5_000
"""A step of this length is measured well enough, and a start does not notice it."""
FIRST_TOKENS = 16

Execute = Callable[[worker_pb2.StepPlan], worker_pb2.StepResult]


def measure_prefill(execute: Execute, most_tokens: int, block_size: int) -> float:
    """Microseconds for each token of a prompt that is computed at once; 0 where there is no room for one.

    The prompt is doubled until its step is long enough, or has most_tokens. The row ends again.
    """
    size = min(FIRST_TOKENS, most_tokens)
    while size > 0:
        duration = min(_prefill(execute, size, block_size) for _ in range(2))
        if size == most_tokens or duration >= LONG_ENOUGH_US:
            return duration / size
        size = min(2 * size, most_tokens)
    return 0.0


def _prefill(execute: Execute, num_tokens: int, block_size: int) -> int:
    """Microseconds of the step."""
    row = pack_u32([0])
    new = worker_pb2.NewRow(
        row=0,
        token_ids=pack_u32([0] * num_tokens),
        prompt_len=num_tokens,
        blocks=pack_u32(range(-(-num_tokens // block_size))),
        sampling=GREEDY,
    )
    counts = pack_u32([num_tokens])
    step = worker_pb2.StepPlan(
        new_rows=[new], rows=row, starts=row, counts=counts, sample_rows=row, sample_sources=row
    )
    duration = execute(step).duration_us
    execute(worker_pb2.StepPlan(removed_rows=row))
    return duration
