"""What tensor-parallel ranks make of one another's parts (kernels.cpu.runtime.rank_exchange): sums, rows side
by side, and which rank has what."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.elementwise.gather import copy_row
from kernels.cpu.elementwise.records import AddPartsRecord, FindOwnersRecord, JoinPartsRecord
from kernels.cpu.isa.simd import load_first_f32
from kernels.cpu.isa.vectors import LANES, read_i64, write_i64


def _two(at: int, stride: int, left: int) -> f32x16:
    return load_first_f32(at, left) + load_first_f32(at + stride, left)


def _four(at: int, stride: int, left: int) -> f32x16:
    return _two(at, stride, left) + _two(at + 2 * stride, stride, left)


@by_dtype
def add_parts(element: Static[Element], record: AddPartsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1: the upper levels of the tree of kernels.ops.layers.leaves, then the
    bias."""
    stride, num_parts, width = record.stride, record.num_parts, record.width
    for row in range(first, first + count):
        for i in range(0, width, LANES):
            at, left = record.parts + 4 * (width * row + i), width - i
            total = _two(at, stride, left) if num_parts == 2 else _four(at, stride, left)
            if num_parts == 8:
                total = total + _four(at + 4 * stride, stride, left)
            if record.bias:
                total = total + load_first_f32(record.bias + 4 * i, left)
            element.store_first(record.out + element.size * (width * row + i), total, left)


@operation
def join_parts(record: JoinPartsRecord, first: int, count: int, thread: int) -> None:
    """Rows first .. first + count - 1: those of all parts, side by side."""
    part_bytes, last = record.part_bytes, record.num_parts - 1
    out_bytes = part_bytes * last + record.last_bytes
    for row in range(first, first + count):
        for number in range(record.num_parts):
            size = record.last_bytes if number == last else part_bytes
            x = record.parts + record.stride * number + size * row
            copy_row(x, record.out + out_bytes * row + part_bytes * number, size)


@operation
def find_owners(record: FindOwnersRecord, first: int, count: int, thread: int) -> None:
    """Ids first .. first + count - 1."""
    begin = read_i64(record.starts + 8 * record.rank)
    for i in range(first, first + count):
        number, owner = read_i64(record.ids + 8 * i), 0
        for rank in range(1, record.num_ranks):
            if number >= read_i64(record.starts + 8 * rank):
                owner = rank
        local = number - begin if owner == record.rank else record.other
        write_i64(record.local + 8 * i, local)
        write_i64(record.sources + 8 * i, record.pitch * owner + i)
