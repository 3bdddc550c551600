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
