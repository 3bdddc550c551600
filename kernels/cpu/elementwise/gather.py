"""Rows of an array by their indexes: tokens of experts, and those that are sampled from."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.elementwise.records import GatherRecord
from kernels.cpu.isa.simd import load_f32, store_f32
from kernels.cpu.isa.vectors import LANES, read_i64, read_u16, write_u16

LINE = 4 * LANES


def copy_row(x: int, out: int, size: int) -> None:
    """Copies so many bytes, a multiple of 2."""
    for at in range(0, size - LINE + 1, LINE):
        store_f32(out + at, load_f32(x + at))
    for at in range(size // LINE * LINE, size, 2):
        write_u16(out + at, read_u16(x + at))


@operation
def gather_rows(record: GatherRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    size = record.row_bytes
    for row in range(first, first + count):
        copy_row(record.x + size * read_i64(record.indexes + 8 * row), record.out + size * row, size)
