"""Rows by their indexes: of an array, as tokens of experts and those that are sampled from, and of a packed
weight (kernels.cpu.matmul.packed), for an embedding."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.records import GatherRecord
from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, read_u32, write_u16, write_u32
from kernels.cpu.matmul.records import PackedRowsRecord
from kernels.cpu.runtime.work_split import COLUMNS

LINE = 4 * LANES


@operation
def gather_rows(record: GatherRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size = record.row_bytes
    for row in range(first, first + count):
        x, out = record.x + size * read_i64(record.indexes + 8 * row), record.out + size * row
        for at in range(0, size - LINE + 1, LINE):
            store_f32(out + at, load_f32(x + at))
        for at in range(size // LINE * LINE, size, 2):
            write_u16(out + at, read_u16(x + at))


@operation
def packed_rows(record: PackedRowsRecord, first: int, count: int, thread: int) -> None:
    """Rows of a packed weight as they were."""
    w, out, pairs = record.weight, record.out, record.words
    for row in range(first, first + count):
        index = read_i64(record.indexes + 8 * row)
        at = w + index // COLUMNS * pairs * 4 * COLUMNS + index % COLUMNS * 4
        for k in range(pairs):
            write_u32(out + 4 * (row * pairs + k), read_u32(at + 4 * COLUMNS * k))
