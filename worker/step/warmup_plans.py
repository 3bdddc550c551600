"""Plans that no request asked for: warm-up, profiling and speed measurements run them as real steps."""

from collections.abc import Sequence

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
