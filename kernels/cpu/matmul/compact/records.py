"""Records of the product of weights in 12 bits, and of what packs and unpacks them."""

from kernels.cpu.compiler.records import Address, OperationRecord, i64, record
from kernels.cpu.matmul.records import PackedRowsRecord
from kernels.cpu.runtime.records import ProductRecord


@record
class CompactLinearRecord(ProductRecord):
    """kernels.cpu.matmul.compact.product.compact_linear. words: a multiple of 4, and at least 8."""

    lists: Address  # [strips] int64: addresses of the strips' rare numbers
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
    """kernels.cpu.matmul.compact.pack.count_rare and make_compact, whose rows are strips."""

    rows_of_weight: Address  # [16 * rows, 2 * words] bfloat16
    weight: Address  # of kernels.cpu.matmul.compact.weight
    numbers: Address  # [rows] int64: count_rare() writes how many are rare, make_compact() reads addresses
    words: i64
    base: i64
