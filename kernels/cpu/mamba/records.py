"""Records of the operations of Mamba-2 layers. T tokens of a step belong to R spans; H heads of P values
share G groups of N values; C = H P + 2 G N channels are convolved. Strides count values."""

from kernels.cpu.compiler.records import Address, OperationRecord, f32, i64, record, u32


@record
class SelectiveScanRecord(OperationRecord):
    """kernels.cpu.mamba.selective_scan.selective_scan, whose rows are heads of spans."""

    spans: Address  # [R] kernels.cpu.delta.records.Span
    mixed: Address  # [T, C] float32: x of all heads, b and c of all groups
    steps: Address  # [T, stride], of which the first H values of each token count
    rates: Address  # [3, H] float32: decay, bias of steps, and how much of x passes by
    state: Address  # [rows, H, N, P] float32
    out: Address  # [T, H, P] float32
    log: Address  # [rows, H, drafts, W] float32: what drafted tokens do (kernels.ops.delta.update_log)
    scratch: Address  # [threads] int64: addresses of kernels.cpu.mamba.selective_scan.scratch_bytes
    stride: u32
    heads: u32  # H
    head_dim: u32  # P
    groups: u32  # G
    state_size: u32  # N
    drafts: u32  # K, the most drafted tokens of a row
    step_factor: f32  # of steps, before their bias


@record
class GroupedNormRecord(OperationRecord):
    """kernels.cpu.mamba.grouped_norm.grouped_norm."""

    x: Address  # [T, groups, width] float32; the operation leaves x * silu(gate) there
    gate: Address  # [T, stride], of which the first groups * width values of each token count
    stride: i64
    weight: Address  # [groups, width]; 0: there is no norm
    out: Address  # [T, groups, width]
    groups: i64
    width: i64
    eps: f32
    factor: f32  # of the gate
