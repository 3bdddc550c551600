"""Records of the operations on rows. Addresses are in memory of this process, strides in bytes.

Where a shape says bfloat16, the operation has a variant for float32, on the same record.
"""

from kernels.cpu.compiler.records import Address, OperationRecord, f32, i64, record


@record
class NormRecord(OperationRecord):
    """kernels.cpu.elementwise.norms.rms_norm.

    x, residual, normed, total: [rows, heads, width] bfloat16, the heads of a row contiguous.
    """

    x: Address
    residual: Address = 0  # 0: none, and total is x
    weight: Address  # [width] bfloat16
    normed: Address
    total: Address
    width: i64
    eps: f32
    weight_offset: f32 = 0  # is added to the weight
    factor: f32  # of x, where there is a residual
    heads: i64
    stride: i64  # from row to row


@record
class GatedActivationRecord(OperationRecord):
    """kernels.cpu.elementwise.activations.gated_silu and gated_gelu."""

    gate_up: Address  # [rows, 2 * width] bfloat16
    out: Address  # [rows, width] bfloat16
    width: i64
    factor: f32 = 0  # of the gate, with silu
    exact: i64 = 0  # 1: gelu, not gelu_new


@record
class ClampedSwigluRecord(OperationRecord):
    """kernels.cpu.elementwise.activations.clamped_swiglu."""

    gate_up: Address  # [rows, 2 * width] bfloat16
    out: Address  # [rows, width] bfloat16
    width: i64
    alpha: f32
    limit: f32


@record
class ScaledAddRecord(OperationRecord):
    """kernels.cpu.elementwise.norms.scaled_add. x, y, out: [rows, width] bfloat16; out may be x or y."""

    x: Address
    y: Address = 0  # 0: zeros
    out: Address
    width: i64
    factor: f32  # of x


@record
class AdjustLogitsRecord(OperationRecord):
    """kernels.cpu.elementwise.norms.adjust_logits. x, out: [rows, width] float32, of
    different memory."""

    x: Address
    out: Address
    width: i64  # at least 16
    scale: f32
    cap: f32  # 0: none


@record
class LayerNormRecord(OperationRecord):
    """kernels.cpu.elementwise.norms.layer_norm. x, residual, normed, total: [rows, width] bfloat16."""

    x: Address
    residual: Address = 0  # 0: none, and total is x
    weight: Address  # [width] bfloat16
    bias: Address  # [width] bfloat16
    normed: Address
    total: Address
    width: i64
    eps: f32


@record
class ActivationRecord(OperationRecord):
    """kernels.cpu.elementwise.activations.activation: x * sigmoid(linear * x + cubic * x ** 3); where
    linear is 0, relu, or gelu if cubic is 1. x, out: [rows, width] bfloat16."""

    x: Address
    out: Address
    width: i64
    linear: f32
    cubic: f32


@record
class RotaryRecord(OperationRecord):
    """kernels.cpu.elementwise.rotary.rotary.

    x, out: [rows, heads, head_dim] bfloat16, the heads of a row contiguous; they may be the same memory.
    cos, sin: [positions, head_dim] float32 (kernels.ops.layers.rotary).
    """

    x: Address
    cos: Address = 0
    sin: Address = 0
    index: Address = 0  # [rows] int64: rows of cos and sin; 0: row i has row i of them
    stride: i64  # from row to row
    heads: i64
    head_dim: i64
    out: Address


@record
class GatherRecord(OperationRecord):
    """kernels.cpu.elementwise.gather.gather_rows: out[i] = x[indexes[i]]."""

    x: Address
    indexes: Address  # [rows] int64
    out: Address
    row_bytes: i64  # a multiple of 2


@record
class AddPartsRecord(OperationRecord):
    """kernels.cpu.elementwise.rank_parts.add_parts."""

    parts: Address  # [num_parts, ..., width] float32, rows of a part behind each other
    stride: i64  # from part to part
    num_parts: i64  # 2, 4 or 8
    bias: Address = 0  # [width] float32; 0: none
    out: Address  # [rows, width] bfloat16
    width: i64


@record
class JoinPartsRecord(OperationRecord):
    """kernels.cpu.elementwise.rank_parts.join_parts."""

    parts: Address  # [num_parts, ..., part_bytes], the last one with rows of last_bytes
    stride: i64  # from part to part
    num_parts: i64
    part_bytes: i64  # of a row; a multiple of 2
    last_bytes: i64
    out: Address  # [rows, part_bytes * (num_parts - 1) + last_bytes]


@record
class FindOwnersRecord(OperationRecord):
    """kernels.cpu.elementwise.rank_parts.find_owners."""

    ids: Address  # [rows] int64
    starts: Address  # [num_ranks + 1] int64: where the ids of each rank begin, and where the last ones end
    num_ranks: i64
    rank: i64
    local: Address  # [rows] int64: numbers among the ids of this rank
    other: i64  # what stands there for those of other ranks
    sources: Address  # [rows] int64: indexes of parts [num_ranks, pitch]: that of the rank that has the id
    pitch: i64
