"""The products of the experts that have tokens, one after the other, as one operation: its units are shared
among threads, however many tokens each expert has.

An expert's product is any of kernels.cpu.matmul; it is called for its units as a program would call it, so
that its results have the same bits.
"""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.experts.dispatch import blocks_of
from kernels.cpu.experts.records import Group, GroupedRecord, Segment
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.runtime.program import call_operation
from kernels.cpu.runtime.records import FIELDS_BYTES, ProductRecord
from kernels.cpu.runtime.work_split import VECTORS


@operation
def grouped_product(record: GroupedRecord, first: int, count: int, thread: int) -> None:
    """Units first .. first + count - 1: blocks of columns, for a chunk of rows of an expert."""
    group, unit, end, number = Group.at(record.group), first, first + count, 0
    while Segment.at(group.segments, number + 1).first <= unit:
        number += 1
    while unit < end:
        segment = Segment.at(group.segments, number)
        product = ProductRecord.at(group.products + FIELDS_BYTES * segment.expert)
        strips, blocks = (product.columns + LANES - 1) // LANES, blocks_of(product)
        stop = min(end, Segment.at(group.segments, number + 1).first)
        while unit < stop:
            chunk, block = (unit - segment.first) // blocks, (unit - segment.first) % blocks
            taken = min(stop - unit, blocks - block)
            begin, several = chunk * strips + VECTORS * block, min(VECTORS * taken, strips - VECTORS * block)
            call_operation(product.operation, product.address, begin, several, thread)
            unit += taken
        number += 1
