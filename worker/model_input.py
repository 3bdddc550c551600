"""The inputs of one step, gathered from the rows. Lives for one step."""

from collections.abc import Iterable

import numpy as np
import torch

from kernels.api import CacheLayout, HostStep, KVCacheSpec, Spans, StepBatch
from kernels.ops.attention.ragged import Integers, ranges
from worker.step.rows import RowTable


def build_input_batch(
    rows: RowTable,
    computing: Integers,
    starts: Integers,
    counts: Integers,
    sources: Integers,
    specs: Iterable[KVCacheSpec],
    layout: CacheLayout,
    has_states: bool = False,
) -> StepBatch:
    """Returns the inputs of a step that torch computes.

    computing, starts, counts: [R], sources: [A] index into them, as in StepPlan. specs: each kind of layer
    once. has_states: layers keep a state per row.
    """
    order = np.lexsort((starts, counts > 1))
    computing, starts, counts = computing[order], starts[order], counts[order]
    owners, positions = ranges(starts, counts)  # [T], [T]
    token_rows = computing[owners]
    block_size = layout.block_size
    used = int((starts + counts).max() - 1) // block_size + 1
    slots = rows.blocks[token_rows, positions // block_size] * block_size + positions % block_size
    tables = rows.blocks[computing, :used]
    step = HostStep(starts, counts, tables, slots)
    last_tokens = np.empty(len(order), np.int64)  # [R] in the plan's order
    last_tokens[order] = np.cumsum(counts) - 1
    row_starts = np.empty(len(order), np.int64)
    row_starts[order] = np.cumsum(counts) - counts

    spans = Spans.empty(len(order)) if has_states else None
    if spans is not None:
        spans.write(computing, starts, counts)

    def tensor(values: Integers) -> torch.Tensor:
        return torch.from_numpy(values).to(layout.device)

    return StepBatch(
        token_ids=tensor(rows.token_ids[token_rows, positions]),
        positions=tensor(positions),
        prompt_lens=tensor(rows.prompt_lens[token_rows]),
        attention={spec: spec.torch_plan(step, layout) for spec in specs},
        spans=spans,
        logit_tokens=tensor(last_tokens[sources]),
        row_starts=row_starts,
    )
