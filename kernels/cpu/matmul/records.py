"""Records of the matrix products, and of what prepares weights and inputs for them.

A strip is 16 columns of a weight, a block 48; see kernels.cpu.runtime.records.ProductRecord.
"""

from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.runtime.records import ProductRecord


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
    """kernels.cpu.matmul.quantize.quantized_rows. out: [rows, width] bfloat16."""

    params: Address
    width: i64


@record
class QuantizeRecord(OperationRecord):
    """kernels.cpu.matmul.quantize.quantize_rows."""

    x: Address  # [rows, width] bfloat16
    out: Address  # [rows, width] uint8
    scales: Address  # [rows] float32
    width: i64  # a multiple of 16
