"""How an adapter lies in memory, and the record of the operation that applies the adapters of a step."""

from kernels.cpu.compiler.records import Address, OperationRecord, Record, f32, i64, record, u32
from kernels.ops.layers.adapters import MAX_RANK

AT_ONCE, MOST_AT_ONCE = 4, 8
"""Tokens that are computed at a time: with different adapters, and with the same one."""
STRIP = 16
T_BYTES = 4 * MAX_RANK


def x_bytes(width: int) -> int:
    """Returns the bytes of a token's inputs as float32, in whole vectors."""
    return (width + STRIP - 1) // STRIP * STRIP * 4


def strip_bytes(inputs: int, is_wide: bool) -> int:
    """Returns the bytes of a strip: 16 outputs of so many inputs, rounded up to an even number."""
    return (inputs + 1) // 2 * (128 if is_wide else 64)


def scratch_bytes(width: int) -> int:
    """Returns the bytes that a thread needs for a layer of so many inputs."""
    return MOST_AT_ONCE * (x_bytes(width) + T_BYTES)


@record
class AdaptedPart(Record):
    """What some consecutive outputs of a layer gain (kernels.ops.layers.adapters.LowRank).

    A matrix is strips of 16 outputs, in each the pairs of inputs one after the other: [K / 2, 16] words of
    two bfloat16, the first input in the lower half, or [K / 2, 2, 16] float32. What is missing of the last
    strip and of the last pair are zeros.
    """

    a: Address  # of K inputs and `rank` outputs; 0: that of the part before, with its scale
    b: Address  # of `rank` inputs and `columns` outputs
    rank: i64
    first: i64
    columns: i64
    scale: f32
    a_is_wide: u32  # whether it is float32
    b_is_wide: i64


@record
class AdaptedLayer(Record):
    """The parts of one layer. An adapter is an array of these, by the number of the layer."""

    parts: Address  # [count] AdaptedPart
    count: i64


@record
class AdaptRecord(OperationRecord):
    """The operations of kernels.cpu.adapters.adapt, whose rows are the tokens that have an adapter."""

    tokens: Address = 0  # [rows] int64
    adapters: Address = 0  # [rows] int64: addresses of AdaptedLayer
    layer: i64
    x: Address  # [T, width]; of a lookup: [T] int64, ids below the width
    width: i64
    y: Address  # [T, columns]
    columns: i64
    scratch: Address  # [threads] int64: addresses of scratch_bytes(width)


@record
class PairAdaptersRecord(OperationRecord):
    """kernels.cpu.adapters.pairs.pair_adapters, whose one row is all tokens that have an adapter. k experts
    for each of them; n pairs in all. Experts are layers that follow one another."""

    tokens: Address = 0  # [count] int64, as in AdaptRecord
    adapters: Address = 0  # [count] int64: addresses of AdaptedLayer
    count: i64 = 0
    top_k: i64
    num_experts: i64
    experts: Address  # [T, k] int64
    places: Address  # [T, k] int64: where each pair is in the order of kernels.ops.experts.dispatch
    starts: Address  # [num_experts] int64, for its own use
    pairs: Address  # [n] int64: AdaptRecord.tokens of the pairs, sorted by expert and adapter
    pair_adapters: Address  # [n] int64: AdaptRecord.adapters of the pairs
