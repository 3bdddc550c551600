"""The inputs of one step, gathered from the rows. Lives for one step."""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from kernels.block_attention import BlockPlan, plan_blocks
from kernels.paged_attention import AttentionPlan, CacheShape, plan_attention
from kernels.paged_kernels import PagedPlan
from kernels.ranges import Integers, ranges
from kernels.store_kv import slot_rows
from worker.rows import RowTable


@dataclass(frozen=True)
class InputBatch:
    """What the model reads in one step. T: tokens in it, with padding.

    Rows do not stand in the plan's order: those that decode come first, the shorter ones before the
    longer ones, so that attention finds rows of about one length side by side. Padding comes last:
    token 0 at position 0 of a dummy row, which writes to the dummy block and attends to nothing.
    """

    store_rotates: ClassVar[bool] = False
    """Whether heads are rotated where keys are stored (worker.layers.attention), and not before."""

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64: index of the token in its row
    prompt_lens: torch.Tensor  # [T] int64: prompt tokens of the token's row
    slot_rows: torch.Tensor  # [T * K] int64: where keys and values go, see kernels.store_kv; on CUDA [T]
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
    """And what the runner looks for in it. A: sampled rows, with padding."""

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


def token_sizes(most: int, dtype: torch.dtype, device: torch.device) -> tuple[int, ...]:
    """The values of T that steps are padded to, ascending up to at least `most`; empty: no padding.

    On a CPU torch compiles a product for every shape it meets, unless it is float32: 0.5 ms for each
    layer shape and T, as much as a decode step of the demo model takes in products. So that T takes
    few values; they are a power of two or close together, and waste less than a quarter above 32.
    """
    if device.type == "cpu" and dtype == torch.float32:
        return ()
    sizes = [1, 2, 4, 8]
    while sizes[-1] < most:
        sizes.append(sizes[-1] + (8 if sizes[-1] < 64 else 32 if sizes[-1] < 256 else 128))
    return tuple(sizes)


def build_input_batch(
    rows: RowTable,
    computing: Integers,
    starts: Integers,
    counts: Integers,
    sources: Integers,
    windows: Iterable[int | None],
    sizes: tuple[int, ...],
    shape: CacheShape,
) -> StepBatch:
    """computing, starts, counts: [R], sources: [A] index into them, as in StepPlan. sizes: see
    token_sizes()."""
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

    def tensor(values: Integers, padding: int) -> torch.Tensor:
        missing = padded(len(values), sizes) - len(values)
        if missing:
            values = np.concatenate((values, np.full(missing, padding)))
        return torch.from_numpy(values).to(shape.device)

    padded_slots = tensor(slots, shape.pad_block * block_size)
    return StepBatch(
        token_ids=tensor(rows.token_ids[token_rows, positions], 0),
        positions=tensor(positions, 0),
        prompt_lens=tensor(rows.prompt_lens[token_rows], 1),
        slot_rows=slot_rows(padded_slots, shape.num_kv_heads, block_size),
        attention={window: _plan_attention(starts, counts, tables, window, shape) for window in windows},
        logit_tokens=tensor(last_tokens[sources], 0),
        row_starts=row_starts,
    )


def _plan_attention(
    starts: Integers, counts: Integers, tables: Integers, window: int | None, shape: CacheShape
) -> AttentionPlan | BlockPlan:
    """For what reads this cache."""
    if shape.kernels is None:
        return plan_attention(starts, counts, tables, window, shape)
    return plan_blocks(shape.kernels, starts, counts, tables, window, shape.head_dim, shape.num_kv_heads)


def padded(length: int, sizes: tuple[int, ...]) -> int:
    """The length with padding. sizes: see token_sizes()."""
    return sizes[bisect_left(sizes, length)] if sizes and length else length
