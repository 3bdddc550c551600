"""Attention in a lowered program: the records of all layers of one kind, and what a step writes into them."""

import torch

from kernels.cpu.attention.block_attention import BlockPlan
from kernels.cpu.attention.planning.kv_prefetch import LEAST_ROWS, KVPrefetch
from kernels.cpu.attention.records import AttentionRecord, PrefetchRecord, StoreKVRecord
from kernels.cpu.runtime.records import ProgramRecord
from worker.attention.block_plan import BlockAttentionPlan
from worker.attention.kv_cache_spec import KVCacheSpec
from worker.lowering.program import Records
from worker.model_input import InputBatch

_ROWS, _SLOTS = ProgramRecord.word("rows"), StoreKVRecord.word("slot_rows")
_PLAN = AttentionRecord.word("plan")
_LISTED_PLAN, _LISTED_ITEMS = PrefetchRecord.word("plan"), PrefetchRecord.word("items")


class AttentionRecords:
    """The attention records of all layers of one kind."""

    def __init__(self, spec: KVCacheSpec) -> None:
        self.spec = spec
        self.prefetch: KVPrefetch | None = None
        self._prefetches: list[int] = []  # the record that lists what products prefetch
        self._stores: list[int] = []
        self._attends: list[int] = []  # each with the record behind it, which combines parts
        self._keys: list[torch.Tensor] = []  # of each layer
        self._num_kv_heads = 0

    def plan_of(self, batch: InputBatch) -> BlockAttentionPlan:
        """Returns the plan of a step for these layers."""
        plan = batch.attention[self.spec]
        assert isinstance(plan, BlockAttentionPlan)
        return plan

    def add_prefetch(self, index: int, prefetch: KVPrefetch) -> None:
        """index: of the record that lists the blocks of each step."""
        self.prefetch = prefetch
        self._prefetches.append(index)

    def add_layer(self, store: int, attend: int, keys: torch.Tensor) -> None:
        """store, attend: indexes of a layer's records. keys: [B, K, S, D] of its cache."""
        self._stores.append(store)
        self._attends.append(attend)
        self._keys.append(keys)
        self._num_kv_heads = keys.shape[1]

    def layers(self) -> list[tuple[int, torch.Tensor]]:
        """Returns the index of each layer's attention record, and its keys."""
        return list(zip(self._attends, self._keys, strict=True))

    def update(self, batch: InputBatch, records: Records) -> None:
        """Writes down where the plan of this batch lies, and how many units of attention it has."""
        planned = self.plan_of(batch)
        plan: BlockPlan = planned.plan
        units = int(plan.made[0]) * self._num_kv_heads
        combines = [index + 1 for index in self._attends]
        records[self._stores, _SLOTS] = planned.slot_rows.data_ptr()
        records[self._attends, _ROWS] = units
        records[combines, _ROWS] = units if len(plan.partials) else 0
        records[self._attends + combines, _PLAN] = plan.address
        if self._prefetches:
            records[self._prefetches, _ROWS] = len(batch.token_ids) >= LEAST_ROWS
            records[self._prefetches, _LISTED_PLAN] = plan.address
            records[self._prefetches, _LISTED_ITEMS] = plan.made[0]
