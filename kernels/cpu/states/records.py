"""Records of the operations of layers that keep a state. T tokens of a step belong to R spans; C channels are
convolved. Strides count values.

    gated delta nets    H value heads of D values share G key heads of N values; C = 2 G N + H D
    Mamba-2             H heads of P values share G groups of N values; C = H P + 2 G N
"""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, f32, i64, record, u32


@record
class Span(Record):
    """The tokens of one row in a step."""

    row: i64
    start: i64  # position of the first one; 0: the row's state begins with zeros
    count: i64
    first: i64  # its index in the step
    behind: i64  # tokens behind which the row's state is copied; 0: it is not
    target: i64  # the row to which
    behind_2: i64  # see behind
    target_2: i64
    replayed: i64  # drafted tokens of the row's last step that its state takes first
    certain: i64  # tokens behind which the row's state stands: those after them are drafted


@record
class ConvolutionRecord(OperationRecord):
    """kernels.cpu.states.convolution.convolution, whose rows are blocks of channels of spans."""

    spans: Address  # [R] Span
    x: Address  # [T, stride], of which the first C values of each token are convolved
    stride: i64
    weight: Address  # [taps, C] float32, the newest token's tap last
    bias: Address  # [C] float32
    state: Address  # [rows, taps - 1, C] float32: what the last tokens had, the oldest first
    out: Address  # [T, C] float32
    channels: i64  # C
    taps: i64
    drafted: Address  # [rows, drafts, C] float32: what drafted tokens had
    drafts: i64  # K, the most drafted tokens of a row


@record
class DeltaRuleRecord(OperationRecord):
    """kernels.cpu.states.delta_rule.delta_rule, whose rows are value heads of spans."""

    spans: Address  # [R] Span
    mixed: Address  # [T, C] float32: queries, keys and values
    gates: Address  # [T, stride]: of each value head b, and behind them a
    decay: Address  # [H] float32
    bias: Address  # [H] float32: of a
    state: Address  # [rows, H, N, D] float32
    out: Address  # [T, H, D] float32
    log: Address  # [rows, H, drafts, W] float32: what drafted tokens do (kernels.ops.states.update_log)
    scratch: Address  # [threads] int64: addresses of kernels.cpu.states.delta_rule.scratch_bytes
    stride: u32
    key_heads: u32  # G
    value_heads: u32  # H
    key_dim: u32  # N
    value_dim: u32  # D
    drafts: u32  # K, the most drafted tokens of a row


@record
class GatedNormRecord(OperationRecord):
    """kernels.cpu.states.norms.gated_norm."""

    x: Address  # [T, heads, width] float32
    gate: Address  # [T, stride], of which the first heads * width values of each token count
    stride: i64
    weight: Address  # [width]
    out: Address  # [T, heads, width]
    heads: i64
    width: i64
    eps: f32


@record
class OutputGateRecord(OperationRecord):
    """kernels.cpu.states.norms.output_gate. x, gate, out: [rows, width]."""

    x: Address
    gate: Address
    out: Address
    width: i64


@record
class SelectiveScanRecord(OperationRecord):
    """kernels.cpu.states.selective_scan.selective_scan, whose rows are heads of spans."""

    spans: Address  # [R] kernels.cpu.states.records.Span
    mixed: Address  # [T, C] float32: x of all heads, b and c of all groups
    steps: Address  # [T, stride], of which the first H values of each token count
    rates: Address  # [3, H] float32: decay, bias of steps, and how much of x passes by
    state: Address  # [rows, H, N, P] float32
    out: Address  # [T, H, P] float32
    log: Address  # [rows, H, drafts, W] float32: what drafted tokens do (kernels.ops.states.update_log)
    scratch: Address  # [threads] int64: addresses of kernels.cpu.states.selective_scan.scratch_bytes
    stride: u32
    heads: u32  # H
    head_dim: u32  # P
    groups: u32  # G
    state_size: u32  # N
    drafts: u32  # K, the most drafted tokens of a row
    step_factor: f32  # of steps, before their bias


@record
class GroupedNormRecord(OperationRecord):
    """kernels.cpu.states.norms.grouped_norm."""

    x: Address  # [T, groups, width] float32; the operation leaves x * silu(gate) there
    gate: Address  # [T, stride], of which the first groups * width values of each token count
    stride: i64
    weight: Address  # [groups, width]; 0: there is no norm
    out: Address  # [T, groups, width]
    groups: i64
    width: i64
    eps: f32
    factor: f32  # of the gate
