"""Plans that no request asked for: warm-up and profiling run them as real steps, and so does the measurement
of the speed of prefill, which the engine core weighs against copying blocks from host memory."""

from collections.abc import Callable, Sequence

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2

GREEDY = generation_pb2.SamplingParams(temperature=0)  # absent parameters are neutral


def prefill_plan(
    counts: Sequence[int],
    block_size: int,
    params: generation_pb2.SamplingParams = GREEDY,
    one_block: bool = False,
) -> worker_pb2.StepPlan:
    """Returns a plan in which rows 0, 1, ... begin with counts tokens, compute them and sample.

    A row of one token is computed as one that decodes. one_block: all of them write to block 0, so that a
    cache of one block is enough.
    """
    plan, first = _computing([0] * len(counts), counts), 0
    for row, count in enumerate(counts):
        used = -(-count // block_size)
        blocks = [0] * used if one_block else range(first, first + used)
        first += used
        plan.new_rows.append(
            worker_pb2.NewRow(
                row=row,
                prompt_len=count,
                token_ids=pack_u32([0] * count),
                blocks=pack_u32(blocks),
                sampling=params,
            )
        )
    return plan


def decode_plan(lengths: Sequence[int]) -> worker_pb2.StepPlan:
    """Returns a plan in which rows 0, 1, ... compute the token at position lengths and sample."""
    return _computing(lengths, [1] * len(lengths))


def draft_plan(lengths: Sequence[int]) -> worker_pb2.StepPlan:
    """Returns a plan in which rows 0, 1, ... compute the token at position lengths and one that is drafted
    for them, and sample behind each."""
    plan = _computing(lengths, [2] * len(lengths))
    plan.sample_counts = plan.counts
    return plan


def removal_plan(plan: worker_pb2.StepPlan) -> worker_pb2.StepPlan:
    """Returns a plan that ends the rows of another one."""
    return worker_pb2.StepPlan(removed_rows=plan.rows)


def _computing(starts: Sequence[int], counts: Sequence[int]) -> worker_pb2.StepPlan:
    rows = pack_u32(range(len(counts)))
    return worker_pb2.StepPlan(
        rows=rows, starts=pack_u32(starts), counts=pack_u32(counts), sample_rows=rows, sample_sources=rows
    )


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
