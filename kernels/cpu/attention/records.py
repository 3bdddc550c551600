"""Records of attention: what the layers of a step share (PlanRecord), what a step is divided into
(AttentionItem), what a layer computes, and what products prefetch for it. Strides are in bytes."""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, f32, i64, record, u32
from kernels.cpu.isa.vectors import read_i64


@record
class AttentionItem(Record):
    """Up to 8 (query, head) pairs of a row of the step that share a KV head."""

    start: i64  # of the row: its first position in this step
    table: Address  # of the row: [blocks] int64
    token: i64  # of the row: its first token in this step
    first: i64  # the first (query, head) pair, counted from the row's first one
    pairs: i64
    part: i64  # of the row's positions; -1: all of them
    slot: i64 = 0  # for the part's result
    paired: Address = 0  # an item of another row, that is computed together with this one; 0: none
    shared: i64 = 0  # of a paired item: positions, from the first on, in the same blocks as the other row's
    end: i64 = 0  # of the row: its last position in this step, and one


@record
class PlanRecord(Record):
    """What the layers of a step that have the same window share."""

    items: Address  # of AttentionItem
    window: i64  # 0: none
    chunked: i64  # 1: the window is the chunk of so many positions in which the query stands
    bidirectional: i64  # 1: a query sees as far ahead as back
    scratch: Address  # of the first thread
    scratch_bytes: i64  # of each thread
    partials: Address  # of the results of parts
    set_bytes: i64  # of partials, for one layer
    last_seen: Address = 0  # [T] int64: the last position that each token of the step sees; 0: its own one


def first_seen(plan: PlanRecord, position: int) -> int:
    """The first position that the query at a position sees: of all, of its window, or of its chunk."""
    if plan.window == 0:
        return 0
    if plan.chunked:
        return position // plan.window * plan.window
    return max(0, position - plan.window + 1)


def last_seen(plan: PlanRecord, item: AttentionItem, position: int) -> int:
    """The last position that the query at a position of an item's row sees: this one, or what the plan says
    of its token, or, where layers are bidirectional, the last one of the row or of the window."""
    if plan.last_seen:
        return read_i64(plan.last_seen + 8 * (item.token + position - item.start))
    if plan.bidirectional == 0:
        return position
    if plan.window == 0:
        return item.end - 1
    return min(item.end - 1, position + plan.window - 1)


@record
class ScoringRecord(Record):
    """What a layer does with scores besides scaling them; see kernels.ops.attention.paged_attention."""

    soft_cap: f32  # 0: none
    sinks: Address = 0  # [H] float32; 0: none


@record
class AttentionRecord(OperationRecord):
    """attention_bfloat16, combine_parts and their like in kernels.cpu.attention.

    rows: items * kv_heads. query: [T, H, head_dim] bfloat16, out: [T, H, value_dim], the heads of a token
    contiguous.
    """

    query: Address
    key_cache: Address  # [B, K, S, head_dim] of a layer, as kernels.cpu.attention.bfloat16_kv writes it
    value_cache: Address
    out: Address
    plan: Address  # of PlanRecord
    query_stride: i64  # from token to token
    out_stride: i64
    kv_heads: u32
    value_dim: u32  # of head_dim values of a key's place, those that are mixed; else head_dim
    head_dim: i64
    scoring: Address = 0  # of ScoringRecord; 0: neither cap nor sinks
    group: u32  # query heads per KV head
    block_size: u32
    scale: f32
    partial_set: u32  # which set of PlanRecord.partials the layer has


@record
class StoreKVRecord(OperationRecord):
    """kernels.cpu.attention.bfloat16_kv.store_kv. key, value: [rows, heads, head_dim] bfloat16."""

    key: Address
    value: Address
    key_cache: Address
    value_cache: Address
    slot_rows: Address  # [rows * heads] int64
    stride: i64  # of key and value, from token to token
    heads: i64
    head_dim: i64


@record
class CopyHeadsRecord(OperationRecord):
    """kernels.cpu.attention.latent.operations.copy_heads. x, out: [rows, heads], of different memory. Strides
    are from row to row, pitches from head to head."""

    x: Address
    out: Address
    heads: i64
    head_bytes: i64  # a multiple of 4
    x_stride: i64
    x_pitch: i64
    out_stride: i64
    out_pitch: i64


@record
class PrefetchStep(Record):
    """What kernels.cpu.attention.planning.kv_prefetch_list finds out about a step."""

    pieces: Address  # [count] int64
    count: i64 = 0


@record
class PrefetchRecord(OperationRecord):
    """kernels.cpu.attention.planning.kv_prefetch_list.list_pieces."""

    plan: Address  # of PlanRecord
    step: Address  # of PrefetchStep
    items: i64
    group: i64  # query heads per KV head
    block_size: i64
    block_bytes: i64  # of the keys of a block
    to_values: i64  # from a layer's keys to its values


@record
class PrefetchStream(Record):
    """What a product prefetches for the next attention. Of the products since the last attention, with each
    tile of 8 rows:"""

    step: Address  # of PrefetchStep
    keys: Address  # of the layer
    before: i64  # pieces that those before this one prefetch
    total: i64  # pieces that all of them prefetch


@record
class PartPlace(Record):
    """Where a part of a unit of attention is (kernels.cpu.attention.tiles). The list
    follows."""

    begin: i64  # first position, a multiple of 16
    tiles: i64
    item: Address  # of AttentionItem
    head: i64  # KV head
    end: i64  # last position of the item's row, and one
    shared: i64  # tiles that the item's row shares with the paired one
    own: i64  # tiles of the item's row only
    paired_end: i64  # last position of the paired row, and one
