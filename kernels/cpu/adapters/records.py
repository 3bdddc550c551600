"""How an adapter lies in memory, and the record of the operation that applies the adapters of a step."""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, f32, i64, record, u32

AT_ONCE = 4
"""Tokens that are computed at a time."""
STRIP = 16
MAX_RANK = 256
T_BYTES = 4 * MAX_RANK


def x_bytes(width: int) -> int:
    """Returns the bytes of a token's inputs as float32, in whole vectors."""
    return (width + STRIP - 1) // STRIP * STRIP * 4


def scratch_bytes(width: int) -> int:
    """Returns the bytes that a thread needs for a layer of so many inputs."""
    return AT_ONCE * (x_bytes(width) + T_BYTES)


@record
class AdaptedPart(Record):
    """What some consecutive outputs of a layer gain (kernels.ops.layers.adapters.LowRank). Strips are of 16
    values; what is behind the last one are zeros."""

    a: Address  # [ceil(rank / 16), K, 16]; 0: that of the part before, with its scale
    b: Address  # [ceil(columns / 16), rank, 16]
    rank: i64
    first: i64
    columns: i64
    scale: f32
    a_bytes: u32  # of a value: 2, bfloat16, or 4, float32
    b_bytes: i64


@record
class AdaptedLayer(Record):
    """The parts of one layer. An adapter is an array of these, by the number of the layer."""

    parts: Address  # [count] AdaptedPart
    count: i64


@record
class AdaptRecord(OperationRecord):
    """kernels.cpu.adapters.adapt.adapt, whose rows are the tokens that have an adapter."""

    tokens: Address = 0  # [rows] int64
    adapters: Address = 0  # [rows] int64: addresses of AdaptedLayer
    layer: i64
    x: Address  # [T, width] bfloat16
    width: i64
    y: Address  # [T, columns] bfloat16
    columns: i64
    scratch: Address  # [threads] int64: addresses of scratch_bytes(width)
