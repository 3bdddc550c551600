"""Attention in a program: the records of all layers of one kind, what a step writes into them, and the angles
of a step."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernels.attention.block_plan import BlockAttentionPlan
from kernels.attention.kv_cache_spec import KVCacheSpec
from kernels.attention.latent import BlockLatentPlan
from kernels.attention.plan import HeadNorms, LayerCache, Rotation, Scoring
from kernels.batch import InputBatch
from kernels.cpu.attention.block_attention import BlockPlan, attention_record, scoring_record
from kernels.cpu.attention.latent.attention import store_record
from kernels.cpu.attention.planning.kv_prefetch import LEAST_ROWS, KVPrefetch
from kernels.cpu.attention.records import AttentionRecord, PrefetchRecord, ScoringRecord, StoreKVRecord
from kernels.cpu.elementwise.records import RotaryRecord
from kernels.cpu.program.program import Records
from kernels.cpu.program.writer import ProgramWriter
from kernels.cpu.runtime.grain import row_grain
from kernels.cpu.runtime.records import ProgramRecord
from kernels.torch_ops import Ops

_ROWS, _SLOTS = ProgramRecord.word("rows"), StoreKVRecord.word("slot_rows")
_PLAN = AttentionRecord.word("plan")
_LISTED_PLAN, _LISTED_ITEMS = PrefetchRecord.word("plan"), PrefetchRecord.word("items")
_COS, _END = RotaryRecord.word("cos"), RotaryRecord.word("index") + 1


class AttentionRecords:
    """The attention records of all layers of one kind."""

    def __init__(self, ops: ProgramWriter, spec: KVCacheSpec) -> None:
        self.spec = spec
        self.prefetch: KVPrefetch | None = None
        self._ops = ops
        self._prefetches: list[int] = []  # the record that lists what products prefetch
        self._stores: list[int] = []
        self._attends: list[int] = []  # each with the record behind it, which combines parts
        self._keys: list[torch.Tensor] = []  # of each layer
        self._scorings: list[ScoringRecord | None] = []  # that records point at

    def plan_of(self, batch: InputBatch) -> BlockAttentionPlan | BlockLatentPlan:
        """Returns the plan of a step for these layers."""
        plan = batch.attention[self.spec]
        assert isinstance(plan, BlockAttentionPlan | BlockLatentPlan)
        return plan

    def add_prefetch(self, prefetch: KVPrefetch, record: PrefetchRecord) -> None:
        """Has products prefetch. record: lists the blocks of each step."""
        self.prefetch = prefetch
        self._prefetches.append(self._ops.put(prefetch.operation, record, 1))

    def store(self, record: StoreKVRecord, width: int) -> None:
        """Puts what writes into the cache, `width` values of each token."""
        self._stores.append(self._ops.put(self._ops.blocks.store, record, row_grain(width)))

    def attend(
        self,
        query: torch.Tensor,
        caches: tuple[torch.Tensor, torch.Tensor],
        scoring: Scoring,
        value_dim: int,
    ) -> torch.Tensor:
        """Puts attention. query: [M, H, D]. caches: keys and values, [B, K, S, D]. Returns [M, H,
        value_dim]."""
        ops, heads, blocks = self._ops, query.shape[1], self._ops.blocks
        out = ops.empty((len(query), heads, value_dim), query.dtype)
        strides = query.itemsize * query.stride(0), out.itemsize * out.stride(0)
        self._scorings.append(scoring_record(scoring.soft_cap, scoring.sinks))
        record = attention_record(
            query.data_ptr(),
            out.data_ptr(),
            caches,
            0,
            strides,
            heads,
            scoring.scale,
            ops.buffers.set_number,
            self._scorings[-1],
            value_dim,
        )
        self._attends.append(ops.put(blocks.attend, record, 1, repeatable=True))
        ops.put(blocks.combine, record, 1, repeatable=True)
        self._keys.append(caches[0])
        return out

    def layers(self) -> list[tuple[int, torch.Tensor]]:
        """Returns the index of each layer's attention record, and its keys."""
        return list(zip(self._attends, self._keys, strict=True))

    def update(self, batch: InputBatch, records: Records) -> None:
        """Writes down where the plan of this batch lies, and how many units of attention it has."""
        planned = self.plan_of(batch)
        plan: BlockPlan = planned.plan
        units = int(plan.made[0]) * self._keys[0].shape[1]
        combines = [index + 1 for index in self._attends]
        records[self._stores, _SLOTS] = planned.slot_rows.data_ptr()
        records[self._attends, _ROWS] = units
        records[combines, _ROWS] = units if len(plan.partials) else 0
        records[self._attends + combines, _PLAN] = plan.address
        if self._prefetches:
            records[self._prefetches, _ROWS] = len(batch.token_ids) >= LEAST_ROWS
            records[self._prefetches, _LISTED_PLAN] = plan.address
            records[self._prefetches, _LISTED_ITEMS] = plan.made[0]


@dataclass(frozen=True)
class RecordedPlan:
    """An AttentionPlan that puts records."""

    ops: ProgramWriter
    records: AttentionRecords

    def store_and_attend(
        self,
        qkv: torch.Tensor,
        cache: LayerCache,
        scoring: Scoring,
        rotation: Rotation | None = None,
        norms: HeadNorms | None = None,
    ) -> torch.Tensor:
        (_, total, head_dim), (key_cache, value_cache) = qkv.shape, cache
        kv_heads = key_cache.shape[1]
        heads, key = total - 2 * kv_heads, qkv
        query = self._rotated(qkv, heads, kv_heads, rotation, norms)
        if norms is not None or not (rotation is None or rotation.queries_only):
            key = query
        head_bytes = qkv.itemsize * head_dim
        store = StoreKVRecord(
            key=key.data_ptr() + head_bytes * heads,
            value=qkv.data_ptr() + head_bytes * (heads + kv_heads),
            key_cache=key_cache.data_ptr(),
            value_cache=value_cache.data_ptr(),
            slot_rows=0,
            stride=qkv.itemsize * qkv.stride(0),
            heads=kv_heads,
            head_dim=head_dim,
        )
        self.records.store(store, 2 * kv_heads * head_dim)
        return self.records.attend(query[:, :heads], (key_cache, value_cache), scoring, head_dim)

    def _rotated(
        self,
        qkv: torch.Tensor,
        heads: int,
        kv_heads: int,
        rotation: Rotation | None,
        norms: HeadNorms | None,
    ) -> torch.Tensor:
        """Returns a buffer of normed and rotated queries and keys, of qkv's shape; without the keys where
        these stay as they are."""
        if rotation is None and norms is None:
            return qkv
        rotated = self.ops.empty(qkv.shape, qkv.dtype)
        if norms is not None:
            self.ops.norm_heads(norms[0], qkv[:, :heads], rotated[:, :heads])
            self.ops.norm_heads(norms[1], qkv[:, heads:-kv_heads], rotated[:, heads:-kv_heads])
        if rotation is not None:
            count = heads if rotation.queries_only else heads + kv_heads
            x = qkv if norms is None else rotated
            angles_of(rotation).put(x[:, :count], rotated[:, :count], repeatable=norms is None)
        return rotated


@dataclass(frozen=True)
class RecordedLatentPlan:
    """A LatentPlan that puts records."""

    records: AttentionRecords
    rank: int

    def store_and_attend(
        self, query: torch.Tensor, latents: torch.Tensor, cache: LayerCache, scale: float
    ) -> torch.Tensor:
        (plane,) = cache
        store = store_record(latents.data_ptr(), latents.itemsize * latents.stride(0), plane, 0)
        self.records.store(store, latents.shape[1])
        return self.records.attend(query, (plane, plane), Scoring(scale), self.rank)


class RecordedAngles(Ops):
    """The operations of a recorded Rotation. Keeps the angles of the current step alive, and their addresses
    in all records that rotate."""

    def __init__(self, ops: ProgramWriter, compute: Callable[[InputBatch], Rotation]) -> None:
        """compute: returns the rotation of a batch."""
        self._ops, self._compute = ops, compute
        self._rotation: Rotation
        self._addresses = 0, 0, 0
        self._indexes: list[int] = []

    def put(self, x: torch.Tensor, out: torch.Tensor, repeatable: bool = False) -> None:
        """Puts a rotation. x, out: [M, N, D], views of buffers with equal strides."""
        _, heads, head_dim = x.shape
        assert x.stride() == out.stride()
        record = RotaryRecord(
            x=x.data_ptr(),
            stride=x.itemsize * x.stride(0),
            heads=heads,
            head_dim=head_dim,
            out=out.data_ptr(),
        )
        rotary, grain = self._ops.rows.rotary, row_grain(heads * head_dim)
        self._indexes.append(self._ops.put(rotary, record, grain, repeatable=repeatable))

    def is_fixed(self, batch: InputBatch) -> bool:
        """Whether the angles are looked up by the positions of the batch, as its next ones will be."""
        return self._rotation.index is not None

    def update(self, batch: InputBatch, records: Records) -> None:
        """Writes down where the angles of this step lie, where that has changed."""
        rotation = self._compute(batch)
        index = 0 if rotation.index is None else rotation.index.data_ptr()
        addresses = rotation.cos.data_ptr(), rotation.sin.data_ptr(), index
        if addresses != self._addresses:
            self._addresses = addresses
            records[self._indexes, _COS:_END] = addresses
        self._rotation = rotation


def angles_of(rotation: object) -> RecordedAngles:
    """Returns the angles of a recorded rotation."""
    assert isinstance(rotation, Rotation) and isinstance(rotation.ops, RecordedAngles)
    return rotation.ops
