"""Measures the speed of prefill, which the engine core weighs against copying blocks from host memory."""

from collections.abc import Callable

from pagewire.internal.v1 import worker_pb2
from worker.step.warmup_plans import prefill_plan, removal_plan

LONG_ENOUGH_US = 5_000
"""A step of this length is measured well enough, and does not delay start-up noticeably."""
SURELY_LONG_US = 50_000
"""What a step sets up the first time is little beside this: it is not repeated."""
FIRST_TOKENS = 16

Execute = Callable[[worker_pb2.StepPlan], worker_pb2.StepResult]


def measure_prefill(execute: Execute, max_tokens: int, block_size: int) -> float:
    """Returns microseconds per token of a prompt that is computed in one step; 0 where max_tokens is 0.

    The prompt is doubled until its step is long enough, or has max_tokens, and the faster of two steps
    counts. Its row is removed again.
    """
    size = min(FIRST_TOKENS, max_tokens)
    while size > 0:
        duration = _prefill_us(execute, size, block_size)
        if duration < SURELY_LONG_US:
            duration = min(duration, _prefill_us(execute, size, block_size))
        if size == max_tokens or duration >= LONG_ENOUGH_US:
            return duration / size
        size = min(2 * size, max_tokens)
    return 0.0


def _prefill_us(execute: Execute, num_tokens: int, block_size: int) -> int:
    """Returns the duration of a step that computes one prompt, in microseconds."""
    plan = prefill_plan([num_tokens], block_size)
    duration = execute(plan).duration_us
    execute(removal_plan(plan))
    return duration
