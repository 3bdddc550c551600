"""The inputs of one step, gathered from the rows. Lives for one step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kernels.cpu.attention.block_attention import BlockPlan, plan_blocks
from kernels.ops.attention.paged_attention import AttentionPlan, CacheShape, plan_attention
from kernels.ops.attention.ragged import Integers, ranges
from kernels.ops.attention.store_kv import slot_rows
from kernels.triton.attention.paged_kernels import PagedPlan
from worker.step.rows import RowTable


@dataclass(frozen=True)
class InputBatch:
    """What the model reads in one step. T: tokens in it, with padding (CUDA graphs alone pad).

    Rows do not stand in the plan's order: those that decode come first, the shorter ones before the
    longer ones, so that attention finds rows of about one length side by side.
    """

    store_rotates: ClassVar[bool] = False
    """Whether heads are rotated where keys are stored (worker.layers.attention), and not before."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64: index of the token in its row
    prompt_lens: torch.Tensor  # [T] int64: prompt tokens of the token's row
    slot_rows: (
        torch.Tensor
    )  # [T * K] int64: where keys and values go, see kernels.ops.attention.store_kv; on CUDA [T]
    attention: Mapping[int | None, AttentionPlan | BlockPlan | PagedPlan]  # by window; without padding

    @property
    def wants_all_logits(self) -> bool:
        """Whether every token is known to be sampled from, in order, as where all rows decode."""
        return False

    @property
    def greedy(self) -> bool:
        """Whether sampled rows are known to take the token of their largest logit, and to want no more."""
        return False


@dataclass(frozen=True)
class StepBatch(InputBatch):
    """And what the runner looks for in it. A: sampled rows."""

    logit_tokens: torch.Tensor | None
    """[A] int64: token (index into T) whose logits are sampled from; None: all of them, in order."""
    row_starts: Integers  # [R] index into T of each row's first token; in the plan's order
    all_greedy: bool = False  # see greedy

    @property
    def wants_all_logits(self) -> bool:
        return self.logit_tokens is None

    @property
    def greedy(self) -> bool:
        return self.all_greedy


def build_input_batch(
    rows: RowTable,
    computing: Integers,
    starts: Integers,
    counts: Integers,
    sources: Integers,
    windows: Iterable[int | None],
    shape: CacheShape,
) -> StepBatch:
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
    row_starts = np.empty(len(order), np.int64)
    row_starts[order] = np.cumsum(counts) - counts

    def tensor(values: Integers) -> torch.Tensor:
        return torch.from_numpy(values).to(shape.device)

    return StepBatch(
        token_ids=tensor(rows.token_ids[token_rows, positions]),
        positions=tensor(positions),
        prompt_lens=tensor(rows.prompt_lens[token_rows]),
        slot_rows=slot_rows(tensor(slots), shape.num_kv_heads, block_size),
        attention={window: _plan_attention(starts, counts, tables, window, shape) for window in windows},
        logit_tokens=tensor(last_tokens[sources]),
        row_starts=row_starts,
    )


def _plan_attention(
    starts: Integers, counts: Integers, tables: Integers, window: int | None, shape: CacheShape
) -> AttentionPlan | BlockPlan:
    """For what reads this cache."""
    if shape.kernels is None:
        return plan_attention(starts, counts, tables, window, shape)
    return plan_blocks(shape.kernels, starts, counts, tables, window, shape.head_dim, shape.num_kv_heads)
