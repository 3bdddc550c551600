"""Sorts pairs by expert while a program runs, writes down which rows each expert's products have, and
computes them."""

from kernels.cpu.compiler.cache import operation
from kernels.cpu.experts.records import DispatchRecord, Group, GroupedRecord, Segment
from kernels.cpu.isa.vectors import LANES, read_i64, write_i64
from kernels.cpu.runtime.program import call_operation
from kernels.cpu.runtime.records import FIELDS_BYTES, ProductRecord
from kernels.cpu.runtime.work_split import ROWS, VECTORS


def blocks_of(product: ProductRecord) -> int:
    """Blocks of 48 columns."""
    return (product.columns + VECTORS * LANES - 1) // (VECTORS * LANES)


def _sort(record: DispatchRecord) -> None:
    """Pairs by expert, those of one expert as they stand. Leaves in `starts` where each expert's pairs
    end."""
    starts, pairs, count = record.starts, record.tokens * record.top_k, record.num_experts
    for expert in range(count):
        write_i64(starts + 8 * expert, 0)
    for pair in range(pairs):
        at = starts + 8 * read_i64(record.experts + 8 * pair)
        write_i64(at, read_i64(at) + 1)
    begin = 0
    for expert in range(count):
        size = read_i64(starts + 8 * expert)
        write_i64(starts + 8 * expert, begin)
        begin += size
    for pair in range(pairs):
        at = starts + 8 * read_i64(record.experts + 8 * pair)
        place = read_i64(at)
        write_i64(at, place + 1)
        write_i64(record.places + 8 * pair, place)
        write_i64(record.pair_tokens + 8 * place, pair // record.top_k)


def _share_out(record: DispatchRecord, group: Group) -> int:
    """Gives each expert its rows of the group's inputs and outputs. Returns the units of the grouped
    product."""
    units, made, begin = 0, 0, 0
    for expert in range(record.num_experts):
        end = read_i64(record.starts + 8 * expert)
        if end > begin:
            address = group.products + FIELDS_BYTES * expert
            product = ProductRecord.at(address)
            product.rows = end - begin
            product.x = group.x + group.x_bytes * begin
            product.out = group.out + product.columns * product.out_bytes * begin
            if group.scales:
                write_i64(address + group.scale_field, group.scales + group.scale_bytes * begin)
            segment = Segment.at(group.segments, made)
            segment.first, segment.expert = units, expert
            made += 1
            units += (end - begin + ROWS - 1) // ROWS * blocks_of(product)
            begin = end
    Segment.at(group.segments, made).first = units
    return units


@operation
def dispatch(record: DispatchRecord, first: int, count: int, thread: int) -> None:
    """All tokens."""
    _sort(record)
    for number in range(2):
        write_i64(record.units + 8 * number, _share_out(record, Group.at(record.groups, number)))


@operation
def grouped_product(record: GroupedRecord, first: int, count: int, thread: int) -> None:
    """Computes units first .. first + count - 1: blocks of columns, for a chunk of rows of an expert.

    The products of the experts that have tokens, one after the other, are one operation, whose units are
    shared among threads, however many tokens each expert has. An expert's product is any of
    kernels.cpu.matmul; it is called for its units as a program would call it, so that its results have the
    same bits."""
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
