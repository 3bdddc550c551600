"""The inputs of one step, gathered from the rows. Lives for one step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from kernels.paged_attention import AttentionPlan, CacheShape, plan_attention, ranges
from kernels.store_kv import slot_rows
from worker.rows import Integers, RowTable


@dataclass(frozen=True)
class InputBatch:
    """What the model reads in one step. T: tokens in it, R: rows, A: sampled rows, W: windows.

    Rows do not stand in the plan's order: those that decode come first, the shorter ones before the
    longer ones, so that attention finds rows of about one length side by side.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64: index of the token in its row
    prompt_lens: torch.Tensor  # [T] int64: prompt tokens of the token's row
    slot_rows: torch.Tensor  # [T * K] int64: where keys and values go, see kernels.store_kv
    attention: Mapping[int | None, AttentionPlan]  # W entries, by window
    logit_tokens: torch.Tensor  # [A] int64: token (index into T) whose logits are sampled from


def build_input_batch(
    rows: RowTable,
    computing: Integers,
    starts: Integers,
    counts: Integers,
    sources: Integers,
    windows: Iterable[int | None],
    shape: CacheShape,
) -> InputBatch:
    """computing, starts, counts: [R], sources: [A] index into them, as in StepPlan."""
    order = np.lexsort((starts, counts > 1))
    computing, starts, counts = computing[order], starts[order], counts[order]
    owners, positions = ranges(starts, counts)  # [T], [T]
    token_rows = computing[owners]
    block_size = shape.block_size
    used = int((starts + counts).max() - 1) // block_size + 1
    slots = rows.blocks[token_rows, positions // block_size] * block_size + positions % block_size
    tables = rows.blocks[computing, :used]
    last_tokens = np.empty(len(order), np.int64)  # [R] in the plan's order
    last_tokens[order] = np.cumsum(counts) - 1

    def tensor(values: Integers) -> torch.Tensor:
        return torch.from_numpy(values).to(shape.device)

    return InputBatch(
        token_ids=tensor(rows.token_ids[token_rows, positions]),
        positions=tensor(positions),
        prompt_lens=tensor(rows.prompt_lens[token_rows]),
        slot_rows=slot_rows(tensor(slots), shape.num_kv_heads, block_size),
        attention={window: plan_attention(starts, counts, tables, window, shape) for window in windows},
        logit_tokens=tensor(last_tokens[sources]),
    )
