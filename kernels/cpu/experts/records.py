"""Records of the operations of a mixture of experts. T tokens have k experts each, of N: P = T * k pairs,
sorted by expert (kernels.ops.experts.dispatch)."""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, f32, i64, record, u32


@record
class RouteRecord(OperationRecord):
    """kernels.cpu.experts.route.route. Numbers behind scratch are those of kernels.ops.experts.routing."""

    logits: Address  # [rows, N] float32
    correction: Address = 0  # [N] float32; 0: none
    weights: Address  # [rows, k] float32
    experts: Address  # [rows, k] int64
    scratch: Address  # [threads] int64: addresses of kernels.cpu.experts.route.scratch_bytes
    num_experts: u32
    top_k: u32
    score: u32
    groups: u32
    top_groups: u32
    group_best: u32
    normalized: u32
    least_sum: f32
    scale: f32
    tolerance: f32


@record
class Group(Record):
    """The products of all experts of one layer, and which of them a step needs."""

    products: Address  # [N] kernels.cpu.runtime.records.ProductRecord, FIELDS_BYTES each
    segments: Address  # [N + 1] Segment: of the experts that have pairs; behind them one with `first` alone
    x: Address  # [P], x_bytes each
    x_bytes: i64
    out: Address  # [P, columns]
    scales: Address = 0  # [P], scale_bytes each: what belongs to inputs in 8-bit integers; 0: they are not
    scale_bytes: i64 = 0
    scale_field: i64 = 0  # offset of their address in a product's record


@record
class Segment(Record):
    """An expert that has pairs."""

    first: i64  # the unit of the grouped product with which it begins
    expert: i64


@record
class DispatchRecord(OperationRecord):
    """kernels.cpu.experts.dispatch.dispatch, whose one row is all tokens."""

    tokens: i64  # T
    top_k: i64
    num_experts: i64
    experts: Address  # [T, k] int64; N: an expert that another rank has
    starts: Address  # [N + 1] int64, for its own use
    pair_tokens: Address  # [P] int64: the token of each pair, sorted by expert
    places: Address  # [T, k] int64: where each pair is in that order
    groups: Address  # [2] Group
    units: Address  # [2] int64: of the grouped products


@record
class WeighRecord(OperationRecord):
    """kernels.cpu.experts.dispatch.weigh, whose rows are pairs in the order of tokens; see
    kernels.ops.experts.dispatch."""

    x: Address  # [T, width]
    weights: Address  # [T, k] float32
    places: Address  # [T, k] int64
    out: Address  # [P, width]
    width: i64
    top_k: i64


@record
class GroupedRecord(OperationRecord):
    """kernels.cpu.experts.dispatch.grouped_product, whose rows are blocks of columns of chunks of
    rows."""

    group: Address  # of a Group


@record
class CombineRecord(OperationRecord):
    """kernels.cpu.experts.dispatch.combine; see kernels.ops.experts.dispatch."""

    y: Address  # [P, width]
    weights: Address  # [rows, k] float32
    places: Address  # [rows, k] int64
    shared: Address = 0  # [rows, width]; 0: none
    gate: Address = 0  # [rows] float32; 0: the factor is 1
    out: Address  # [rows, width]
    width: i64
    top_k: i64
