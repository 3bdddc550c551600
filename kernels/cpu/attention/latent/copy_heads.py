"""Copies the heads of rows from one layout to another, [T, H, D] to [H, T, D] or between strides: products of
single heads read and write their rows one behind the other."""

from kernels.cpu.attention.records import CopyHeadsRecord
from kernels.cpu.attention.vector_loops import copy
from kernels.cpu.compiler.cache import operation
from kernels.cpu.isa.vectors import read_u32, write_u32


def _copy(source: int, to: int, num_bytes: int) -> None:
    """A multiple of 4."""
    lines = num_bytes // 64
    if lines:
        copy(source, to, lines)
    for at in range(64 * lines, num_bytes, 4):
        write_u32(to + at, read_u32(source + at))


@operation
def copy_heads(record: CopyHeadsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1."""
    for row in range(first, first + count):
        x, out = record.x + row * record.x_stride, record.out + row * record.out_stride
        for head in range(record.heads):
            _copy(x + head * record.x_pitch, out + head * record.out_pitch, record.head_bytes)
