"""The inputs of one step, gathered from the rows. Lives for one step."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from kernels.ops.attention.ragged import Integers, ranges
from kernels.ops.states.spans import DeviceSpans, Spans
from worker.attention.kv_cache_spec import CacheLayout, KVCacheSpec
from worker.attention.torch_plan import HostStep
from worker.step.rows import RowTable


@dataclass(frozen=True)
class InputEmbeddings:
    """Values that stand for the embeddings of some tokens, such as those of an image. Their token ids may be
    any of the vocabulary."""

    tokens: torch.Tensor  # [N] int64: index into T, all different
    values: torch.Tensor  # [N, E], of the model's dtype and on its device


@dataclass(frozen=True, kw_only=True)
class InputBatch:
    """What the model reads in one step. T: tokens of the step, with padding (only CUDA graphs pad).

    Rows are not in the plan's order: decoding rows come first, shorter ones before longer ones, so that
    attention finds rows of similar length side by side.
    """

    token_ids: torch.Tensor  # [T] int64
    positions: torch.Tensor  # [T] int64: index of the token in its row
    prompt_lens: torch.Tensor  # [T] int64: prompt tokens of the token's row
    attention: Mapping[KVCacheSpec, Any]  # an AttentionPlan or LatentPlan per kind of layer; without padding
    max_context: int | None = None
    """Positions of the longest row at most, where the host knows a bound that changes rarely: angles of
    rotations may then be looked up."""
    input_embeddings: InputEmbeddings | None = None
    spans: Spans | DeviceSpans | None = None
    """The rows in the order of their tokens, for layers that keep a state per row; None: there are none."""

    @property
    def wants_all_logits(self) -> bool:
        """True if every token is known to be sampled from, in order, as when all rows decode."""
        return False

    @property
    def greedy(self) -> bool:
        """True if sampled rows are known to take the token of their largest logit and to need nothing
        else."""
        return False


@dataclass(frozen=True, kw_only=True)
class StepBatch(InputBatch):
    """An InputBatch with what the runner needs to sample. A: sampled rows."""

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


def with_all_positions(batch: StepBatch, num_logits: Integers) -> StepBatch:
    """Returns a batch whose rows sample from several of their last positions. num_logits: [A] how many."""
    if batch.logit_tokens is None:
        return batch
    last = batch.logit_tokens.numpy()
    return replace(batch, logit_tokens=torch.from_numpy(ranges(last - num_logits + 1, num_logits)[1]))


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
