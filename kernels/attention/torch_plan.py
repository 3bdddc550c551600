"""Attention by torch: the plan for any device, dtype and block size."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from kernels.attention.plan import LayerCache, Scoring, SeparatePlan
from kernels.ops.attention.gather_plan import GatherPlan
from kernels.ops.attention.paged_attention import paged_attention
from kernels.ops.attention.ragged import Integers
from kernels.ops.attention.store_kv import slot_rows, store_kv


@dataclass(frozen=True)
class TorchAttentionPlan(SeparatePlan):
    """An AttentionPlan of kernels.ops.attention.paged_attention."""

    plan: GatherPlan
    slot_rows: torch.Tensor  # [T * K] int64: see kernels.ops.attention.store_kv
    plan_again: Callable[[Integers], GatherPlan]  # from what with_last_seen() takes

    def with_last_seen(self, last_seen: torch.Tensor) -> "TorchAttentionPlan":
        return replace(self, plan=self.plan_again(last_seen.numpy()))

    def store(self, key: torch.Tensor, value: torch.Tensor, cache: LayerCache) -> None:
        key_cache, value_cache = cache
        store_kv(key, value, key_cache, value_cache, self.slot_rows)

    def attend(self, query: torch.Tensor, cache: LayerCache, scoring: Scoring) -> torch.Tensor:
        numbers = scoring.scale, scoring.soft_cap, scoring.sinks
        key_cache, value_cache = cache
        return paged_attention(query, key_cache, value_cache, self.plan, *numbers)


@dataclass(frozen=True)
class HostStep:
    """A step's rows as plans on the host are made from them. R rows, T tokens."""

    starts: Integers  # [R] position of each row's first token in this step
    counts: Integers  # [R] tokens of each row in this step
    block_tables: Integers  # [R, N]
    slots: Integers  # [T] block * block size + offset of each token
    _slot_rows: dict[int, torch.Tensor] = field(default_factory=dict)

    def slot_rows(self, num_kv_heads: int, block_size: int, device: torch.device) -> torch.Tensor:
        """[T * K] int64 on the device; made once per number of KV heads."""
        if num_kv_heads not in self._slot_rows:
            slots = torch.from_numpy(np.asarray(self.slots)).to(device)
            self._slot_rows[num_kv_heads] = slot_rows(slots, num_kv_heads, block_size)
        return self._slot_rows[num_kv_heads]
