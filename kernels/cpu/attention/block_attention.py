"""kernels.ops.attention.paged_attention on a CPU: blocks are read where they lie, nothing is gathered.

The operation, its shapes and the reference are those of kernels.ops.attention.paged_attention. What differs
is the order of values within a block, which kernels.cpu.attention.bfloat16_kv writes and
kernels.cpu.attention.attention reads; copying whole blocks works on both. The cache has the
queries' dtype, or is e4m3 (kernels.cpu.attention.e4m3_kv). Block sizes must be multiples of 16; head sizes
are even and up to 512 in bfloat16, and any up to 256 in float32. A query's result has the same
bits whatever else is in the batch, however the prompt is cut into chunks, and whichever blocks hold it.

Bytes moved: each row's keys and values once per group of heads and 8 (query, head) pairs.
"""

from dataclasses import dataclass, replace

import torch

from kernels.cpu.attention.block_kernels import BlockKernels
from kernels.cpu.attention.planning.work_items import JOINED_GROUPS, Int64s
from kernels.cpu.attention.records import AttentionRecord, PlanRecord, ScoringRecord, StoreKVRecord
from kernels.cpu.attention.sizes import MOST_QUERY, partial_bytes, scratch_bytes
from kernels.cpu.compiler.records import Operation

SETS = 4
"""Sets of partial results, as of the other buffers of a layer (kernels.cpu.program.buffers): a thread that
lags behind may still write to those of an earlier layer."""

_Operations = tuple[Operation[StoreKVRecord], Operation[AttentionRecord], Operation[AttentionRecord]]


@dataclass(frozen=True)
class BlockPlan:
    """What all layers with the same window share in one step."""

    kernels: BlockKernels
    items: Int64s  # [I, ITEM_WORDS]: kernels.cpu.attention.records.AttentionItem
    made: Int64s  # [1]: so many of them are taken by themselves; those that are paired with others follow
    record: PlanRecord  # the plan as the kernels read it
    tables: Int64s  # that the items point at
    context: int  # the most positions of a row
    partials: torch.Tensor  # [bytes]: the places for results of parts; empty where no row is split
    last_seen: Int64s | None = None  # [T]: see with_last_seen()

    def with_last_seen(self, last_seen: Int64s) -> "BlockPlan":
        """Returns the plan of the same step whose tokens see up to these positions [T]."""
        record = PlanRecord.from_buffer_copy(self.record)
        record.last_seen = last_seen.ctypes.data
        return replace(self, record=record, last_seen=last_seen)

    @property
    def address(self) -> int:
        """Address of the plan's record."""
        return self.record.address

    def attend(self, record: AttentionRecord) -> None:
        """Computes a record's attention at once."""
        units, kernels = int(self.made[0]) * record.kv_heads, self.kernels
        kernels.team.run_one(kernels.attend, units, record, 1)
        if len(self.partials):
            kernels.team.run_one(kernels.combine, units, record, 1)


def block_kernels(
    dtype: torch.dtype, block_size: int, head_dim: int, group: int, e4m3: bool = False
) -> BlockKernels | None:
    """Returns the kernels for these sizes; None if they do not fit. e4m3: whether the cache has that dtype.
    Call only if kernels.cpu.requirements.why_not() is None."""
    query_bytes = head_dim * dtype.itemsize
    fits = block_size % 16 == 0 and query_bytes % 4 == 0 and query_bytes <= MOST_QUERY
    if not fits or dtype not in (torch.bfloat16, torch.float32):
        return None
    joins = group in JOINED_GROUPS and head_dim % 64 == 0
    return BlockKernels(dtype, *_operations(dtype, e4m3), group, block_size, joins)


def _operations(dtype: torch.dtype, e4m3: bool) -> _Operations:
    """Returns what stores, attends and combines, compiled if needed."""
    if dtype == torch.float32:
        from kernels.cpu.attention import float32_kv as wide

        if e4m3:
            from kernels.cpu.attention import e4m3_kv as narrow

            return narrow.store_e4m3_of_float32, narrow.attention_float32_of_e4m3, wide.combine_parts_float32
        return wide.store_kv_float32, wide.attention_float32, wide.combine_parts_float32
    from kernels.cpu.attention.combine_parts import combine_parts

    if e4m3:
        from kernels.cpu.attention import e4m3_kv as narrow

        return narrow.store_e4m3, narrow.attention_of_e4m3, combine_parts
    from kernels.cpu.attention.bfloat16_kv import attention_bfloat16, store_kv

    return store_kv, attention_bfloat16, combine_parts


def block_plan(
    kernels: BlockKernels,
    items: Int64s,
    made: Int64s,
    tables: Int64s,
    context: int,
    places: int,
    window: int | None,
    shape: tuple[int, int],
    chunked: bool = False,
    bidirectional: bool = False,
) -> BlockPlan:
    """items, made, tables, context: see BlockPlan. places: for results of parts. shape: KV heads and
    head size. window, chunked, bidirectional: as in kernels.ops.attention.gather_plan.plan_attention."""
    kv_heads, head_dim = shape
    size = scratch_bytes(head_dim, kernels.query_bytes)
    scratch = kernels.scratch.address(kernels.team.threads * size)
    set_bytes = places * kv_heads * partial_bytes(head_dim)
    partials = torch.empty(SETS * set_bytes, dtype=torch.uint8)
    record = PlanRecord(
        items=items.ctypes.data,
        window=window or 0,
        chunked=chunked,
        bidirectional=bidirectional,
        scratch=scratch,
        scratch_bytes=size,
        partials=partials.data_ptr(),
        set_bytes=set_bytes,
    )
    return BlockPlan(kernels, items, made, record, tables, context, partials)


def attention_record(
    query: int,
    out: int,
    cache: tuple[torch.Tensor, torch.Tensor],
    plan: int,
    strides: tuple[int, int],
    num_heads: int,
    scale: float,
    places: int = 0,
    scoring: ScoringRecord | None = None,
    value_dim: int | None = None,
) -> AttentionRecord:
    """Returns the record of attention() and of combine_parts() after it.

    query, out, plan: addresses. cache: keys and values, [B, K, S, D]. strides: bytes from token to token of
    queries and results. places: which set of PlanRecord.partials the layer has. scoring: must live as long as
    the record. value_dim: see AttentionRecord; None: D.
    """
    _, num_kv_heads, block_size, head_dim = cache[0].shape
    return AttentionRecord(
        query=query,
        key_cache=cache[0].data_ptr(),
        value_cache=cache[1].data_ptr(),
        out=out,
        plan=plan,
        query_stride=strides[0],
        out_stride=strides[1],
        kv_heads=num_kv_heads,
        value_dim=value_dim or head_dim,
        group=num_heads // num_kv_heads,
        head_dim=head_dim,
        scoring=0 if scoring is None else scoring.address,
        block_size=block_size,
        scale=scale,
        partial_set=places,
    )


def scoring_record(soft_cap: float | None, sinks: torch.Tensor | None) -> ScoringRecord | None:
    """Returns the record of a soft cap and of sinks [H] float32, which must stay where they are. None:
    there is neither."""
    if soft_cap is None and sinks is None:
        return None
    assert sinks is None or (sinks.dtype == torch.float32 and sinks.is_contiguous())
    return ScoringRecord(soft_cap=soft_cap or 0.0, sinks=0 if sinks is None else sinks.data_ptr())


def block_attention(
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    plan: BlockPlan,
    scale: float,
    scoring: ScoringRecord | None = None,
) -> torch.Tensor:
    """[T, H, D] -> [T, H, D], contiguous. scoring: soft cap and sinks."""
    num_heads, head_dim = query.shape[1:]
    if query.stride()[1:] != (head_dim, 1):
        query = query.contiguous()
    out = query.new_empty(query.shape)
    record = attention_record(
        query.data_ptr(),
        out.data_ptr(),
        (key_cache, value_cache),
        plan.address,
        (query.itemsize * query.stride(0), query.itemsize * num_heads * head_dim),
        num_heads,
        scale,
        scoring=scoring,
    )
    plan.attend(record)
    return out
