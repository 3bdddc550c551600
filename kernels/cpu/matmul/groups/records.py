"""Records of the operations on weights in groups; see kernels.cpu.matmul.groups.weight."""

from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.runtime.records import ProductRecord

PART = 32
"""Inputs of a group that share a small scale, where there are two levels of scales."""
LARGEST_ZERO = 64
"""Zero points of checkpoints are 16 at most; the product of many rows has bytes of p - z without sign, which
are below 128 (kernels.cpu.matmul.groups.many_rows)."""


@record
class GroupLinearRecord(ProductRecord):
    """kernels.cpu.matmul.groups.product.group_linear. x: [rows, 2 * words] words of four int8; params: the
    biases, and with two levels of scales of every 16 columns these behind the biases."""

    terms: (
        Address  # [rows, groups, 2 or more]: of each group of x what kernels.cpu.matmul.groups.inputs makes
    )
    group_words: i64  # words of the weight in a group, of 8 values each
    scratch: Address  # [threads] int64: addresses of kernels.cpu.matmul.groups.many_rows.scratch_bytes


@record
class QuantizeGroupsRecord(OperationRecord):
    """kernels.cpu.matmul.groups.inputs.quantize_groups."""

    x: Address  # [rows, width] bfloat16
    out: Address  # [rows, groups * group_size] int8
    terms: Address  # [rows, groups, 2], or [rows, groups, 2 + group_size / PART] with two levels of scales
    order: Address  # [width] int64: which value of x comes where; 0: as they stand
    width: i64
    groups: i64
    group_size: i64  # a multiple of 16, with two levels of PART
    levels: i64  # of scales: 1 or 2
    scratch: Address  # [threads] int64: addresses of width bfloat16, where there is an order


@record
class RoundLevelsRecord(OperationRecord):
    """kernels.cpu.matmul.groups.two_level_rounding.round_levels, whose rows are those of the weight."""

    weight: Address  # [rows, width] bfloat16
    words: Address  # of kernels.cpu.matmul.groups.weight
    width: i64
    groups: i64
    group_size: i64  # a multiple of PART
    params: Address  # as in GroupLinearRecord: the scales are written
