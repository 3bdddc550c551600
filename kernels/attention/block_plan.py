"""Attention by the CPU's compiled kernels, which read blocks where they lie."""

from dataclasses import dataclass, replace

import torch

from kernels.attention.plan import LayerCache, Scoring, SeparatePlan
from kernels.cpu.attention.block_attention import BlockPlan, block_attention, scoring_record
from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import Int64s


@dataclass(frozen=True)
class BlockStep:
    """A step's rows as the compiled kernels take them; see
    kernels.cpu.attention.block_attention.BlockPlan."""

    kernels: BlockKernels
    items: Int64s  # [I, 9]
    made: Int64s  # [1]
    block_tables: Int64s
    context: int  # positions of the longest row, rounded up
    num_partials: int  # results of parts of split rows
    slot_rows: torch.Tensor  # [T * K] int64: see kernels.ops.attention.store_kv


@dataclass(frozen=True)
class BlockAttentionPlan(SeparatePlan):
    """An AttentionPlan of kernels.cpu.attention.block_attention."""

    plan: BlockPlan
    slot_rows: torch.Tensor  # [T * K] int64: see kernels.ops.attention.store_kv

    def with_last_seen(self, last_seen: torch.Tensor) -> "BlockAttentionPlan":
        return replace(self, plan=self.plan.with_last_seen(last_seen.numpy()))

    def store(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> None:
        key_cache, value_cache = cache
        self.plan.kernels.store_kv(key, value, key_cache, value_cache, self.slot_rows)

    def attend(self, query: torch.Tensor, cache: LayerCache, scoring: Scoring) -> torch.Tensor:
        record = scoring_record(scoring.soft_cap, scoring.sinks)
        key_cache, value_cache = cache
        return block_attention(query, key_cache, value_cache, self.plan, scoring.scale, record)
