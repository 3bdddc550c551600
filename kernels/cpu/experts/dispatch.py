"""Sorts pairs by expert while a program runs, writes down which rows each expert's products have, and
computes them. What experts take is multiplied by the weights of pairs (weigh), or what they give is summed by
them (combine): 16 values per step, rounded once."""

import numpy as np
import numpy.typing as npt

from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32, Element, by_dtype
from kernels.cpu.experts.records import (
    CombineRecord,
    DispatchRecord,
    Group,
    GroupedRecord,
    Segment,
    WeighRecord,
)
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64, write_i64
from kernels.cpu.runtime.program import call_operation, make_ready, run_of
from kernels.cpu.runtime.records import (
    FIELDS_BYTES,
    DecideRowsRecord,
    ProductRecord,
    ProgramRecord,
    RowTarget,
)
from kernels.cpu.runtime.work_split import ROWS, VECTORS


def blocks_of(product: ProductRecord) -> int:
    """Blocks of 48 columns."""
    return (product.columns + VECTORS * LANES - 1) // (VECTORS * LANES)


def _sort(record: DispatchRecord) -> None:
    """Pairs by expert, those of one expert as they stand, and behind them those of no expert. Leaves in
    `starts` where each expert's pairs end."""
    starts, pairs, count = record.starts, record.tokens * record.top_k, record.num_experts + 1
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


@by_dtype
def weigh(element: Static[Element], record: WeighRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.experts.dispatch of pairs first .. first + count - 1."""
    size = element.size * record.width
    for pair in range(first, first + count):
        x, out = (
            record.x + size * (pair // record.top_k),
            record.out + size * read_i64(record.places + 8 * pair),
        )
        weight = read_f32(record.weights + 4 * pair)
        for i in range(0, record.width, LANES):
            at, left = element.size * i, min(LANES, record.width - i)
            element.store_first(out + at, element.load_first(x + at, left) * weight, left)


@by_dtype
def combine(element: Static[Element], record: CombineRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.experts.dispatch of rows first .. first + count - 1."""
    top_k, size = record.top_k, element.size * record.width
    for row in range(first, first + count):
        weights, places = record.weights + 4 * top_k * row, record.places + 8 * top_k * row
        factor = f32x16(1.0)
        if record.gate:
            factor = FLOAT32.times_sigmoid(factor, f32x16(read_f32(record.gate + 4 * row)))
        for i in range(0, record.width, LANES):
            at, left = element.size * i, min(LANES, record.width - i)
            total = element.load_first(record.y + size * read_i64(places) + at, left) * read_f32(weights)
            for j in range(1, top_k):
                y = record.y + size * read_i64(places + 8 * j) + at
                total = total + element.load_first(y, left) * read_f32(weights + 4 * j)
            if record.shared:
                total = total + element.load_first(record.shared + size * row + at, left) * factor
            element.store_first(record.out + size * row + at, total, left)


@operation
def decide_rows(record: DecideRowsRecord, first: int, count: int, thread: int) -> None:
    """Gives records behind this one their rows: experts have as many as tokens are routed to them. A unit is
    a target.

    An operation of a program reads how many rows other records have, and opens these to the threads. No
    thread is at any of them yet, since all wait for this operation's end. What their rows were before does
    not matter.
    """
    run = run_of(ProgramRecord.at(record.address))
    for index in range(first, first + count):
        target = RowTarget.at(record.targets, index)
        behind = ProgramRecord.at(target.record)
        behind.rows = read_i64(target.rows)
        make_ready(behind, run)


def row_targets(targets: list[tuple[int, int]]) -> npt.NDArray[np.int64]:
    """[N, 2], an array of RowTarget. targets: addresses of records, and of the number of rows of each,
    int64."""
    return np.array(targets, np.int64).reshape(-1, 2)
