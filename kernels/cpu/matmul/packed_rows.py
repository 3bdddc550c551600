"""Rows of a packed weight (kernels.cpu.matmul.packed), for an embedding."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_i64, read_u32, write_u32
from kernels.cpu.matmul.records import PackedRowsRecord
from kernels.cpu.runtime.work_split import COLUMNS


@operation
def packed_rows(record: PackedRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a packed weight as they were."""
    w, out, pairs = record.weight, record.out, record.words
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        at = w + index // COLUMNS * pairs * 4 * COLUMNS + index % COLUMNS * 4
        for k in range(pairs):
            write_u32(out + 4 * (row * pairs + k), read_u32(at + 4 * COLUMNS * k))
