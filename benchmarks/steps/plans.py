"""Plans of steps for benchmarks that drive a worker's runner without an engine core."""

from collections.abc import Sequence

from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32
from pagewire.v1 import generation_pb2

GREEDY = generation_pb2.SamplingParams(temperature=0, top_p=1, typical_p=1, repetition_penalty=1)


def plan(
    rows: Sequence[int],
    start: int | Sequence[int],
    count: int | Sequence[int],
    new_rows: Sequence[worker_pb2.NewRow] = (),
    samples: Sequence[int] | None = None,
) -> worker_pb2.StepPlan:
    """Returns a step in which rows compute the tokens at `start` to `start + count - 1`, the same or each its
    own. samples: the first rows, which sample; None: all of them."""
    samples = rows if samples is None else samples
    starts, counts = ([each] * len(rows) if isinstance(each, int) else each for each in (start, count))
    return worker_pb2.StepPlan(
        new_rows=new_rows,
        rows=pack_u32(rows),
        starts=pack_u32(starts),
        counts=pack_u32(counts),
        sample_rows=pack_u32(samples),
        sample_sources=pack_u32(range(len(samples))),
    )


def new_row(row: int, token_ids: Sequence[int], prompt_len: int, blocks: Sequence[int]) -> worker_pb2.NewRow:
    """Returns a greedy row whose tokens are those of a prompt, and of output behind it."""
    return worker_pb2.NewRow(
        row=row,
        prompt_len=prompt_len,
        token_ids=pack_u32(token_ids),
        blocks=pack_u32(blocks),
        sampling=GREEDY,
    )


def removal(rows: Sequence[int]) -> worker_pb2.StepPlan:
    """Returns a step that removes rows and computes nothing."""
    return worker_pb2.StepPlan(removed_rows=pack_u32(rows))
