"""Records of the matrix products, and of what prepares weights and inputs for them, in all forms of weights
(kernels.cpu.matmul.matrix).

A strip is 16 columns of a weight, a block 48; see kernels.cpu.runtime.records.ProductRecord.
"""

from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.runtime.records import ProductRecord

PART = 32
"""Inputs of a group that share a small scale, where there are two levels of scales."""
LARGEST_ZERO = 64
"""Zero points of checkpoints are 16 at most; the product of many rows has bytes of p - z without sign, which
are below 128 (kernels.cpu.matmul.groups.many_rows)."""

E2M1_MIDDLE = 12
_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12)
E2M1_INTEGERS = tuple(E2M1_MIDDLE + value for value in _DOUBLED) + tuple(
    E2M1_MIDDLE - value for value in _DOUBLED
)
"""What stands for each float of 4 bits, by code: a sign, 2 bits of exponent and 1 of fraction, as MXFP4 has
them. All values are halves of integers,

    code       0  1    2  3    4  5  6  7        code + 8: the same value with a minus sign
    value      0  0.5  1  1.5  2  3  4  6

and a product with weights in groups computes with the integer 2 * value + E2M1_MIDDLE, which is 0 .. 24, with
E2M1_MIDDLE as zero point and half of the group's scale."""


@record
class LinearRecord(ProductRecord):
    """linear_bfloat16, linear_int8 and linear_float32 of kernels.cpu.matmul.

    weight: kernels.cpu.matmul.packed, or of integers kernels.cpu.matmul.int8; then params of a strip are the
    biases, the scales [16] float32 and the corrections [16] int32.
    """

    scales: Address = 0  # of linear_int8: [rows] float32, of x
    scratch: Address  # [threads] int64: addresses of kernels.cpu.matmul.gemm.scratch_bytes


@record
class PackedRowsRecord(OperationRecord):
    """kernels.cpu.matmul.packed_rows.packed_rows."""

    indexes: Address  # [rows] int64
    weight: Address
    out: Address  # [rows, 2 * words] bfloat16
    words: i64


@record
class QuantizedRowsRecord(PackedRowsRecord):
    """kernels.cpu.matmul.gemm_int8.quantized_rows. out: [rows, width] bfloat16."""

    params: Address
    width: i64


@record
class QuantizeRecord(OperationRecord):
    """kernels.cpu.matmul.gemm_int8.quantize_rows."""

    x: Address  # [rows, width] bfloat16
    out: Address  # [rows, width] uint8
    scales: Address  # [rows] float32
    width: i64  # a multiple of 16
    largest: Address = 0  # [rows] float32: the largest absolute values of x and of what other ranks have of
    # its rows; 0: x is all


@record
class LargestOfRowsRecord(OperationRecord):
    """kernels.cpu.matmul.gemm_int8_sums.largest_of_rows."""

    x: Address  # [rows, width] bfloat16
    out: Address  # [rows] float32
    width: i64  # a multiple of 16


@record
class LargestOfPartsRecord(OperationRecord):
    """kernels.cpu.matmul.gemm_int8_sums.largest_of_parts."""

    parts: Address  # [num_parts, ...] float32
    stride: i64  # from part to part
    num_parts: i64
    out: Address  # [rows] float32


@record
class ScaledSumsRecord(OperationRecord):
    """kernels.cpu.matmul.gemm_int8_sums.scaled_sums."""

    parts: Address  # [num_parts, ..., width] int32, rows of a part behind each other
    stride: i64  # from part to part
    num_parts: i64
    scales: Address  # [rows] float32, of x
    weight_scales: Address  # [width] float32
    bias: Address = 0  # [width] float32; 0: none
    out: Address  # [rows, width] bfloat16
    width: i64


@record
class CompactLinearRecord(ProductRecord):
    """kernels.cpu.matmul.compact.product.compact_linear. words: a multiple of 4, and at least 8."""

    lists: Address  # [leaves, strips] int64: addresses of the strips' rare numbers
    base: i64
    scratch: Address  # [threads] int64: addresses of kernels.cpu.matmul.compact.product.scratch_bytes


@record
class CompactRowsRecord(PackedRowsRecord):
    """kernels.cpu.matmul.compact.product.compact_rows. lists, base, scratch: see CompactLinearRecord."""

    lists: Address
    base: i64
    scratch: Address


@record
class CompactPackRecord(OperationRecord):
    """kernels.cpu.matmul.compact.product.count_rare and make_compact, whose rows are strips."""

    rows_of_weight: Address  # [16 * rows, 2 * words] bfloat16
    weight: Address  # of kernels.cpu.matmul.compact.weight
    numbers: Address  # [rows, leaves] int64: count_rare() writes how many are rare, make_compact() reads
    # addresses
    words: i64
    base: i64
    depth: i64 = 0  # of the tree of leaves; more than 0: a leaf has a multiple of 16 words


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
    depth: i64 = 0  # of the tree of leaves, of which each has scales
