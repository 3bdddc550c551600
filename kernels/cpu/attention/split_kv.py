"""Attention over a part of a row's positions, and what the parts of a row make together.

A part is PART positions, counted from the row's first one. Its result, of up to 8 (query, head) pairs:

    0           sums     [8, W] float32    of p * v, with p = exp(scale * score - largest); W: row_values() of
                                           the values that are mixed
    32 W        totals   [16] float32      of p
    32 W + 64   largest  [16] float32      of scale * score; -inf where the pair sees nothing

    merged   largest    max(before, own)
             sums       sums * exp(before - largest) + sums of this part * exp(own - largest)
             totals     likewise

Parts are merged one after the other, in ascending order, wherever that is done: by the
thread that computes them all, or by combine_parts() after several threads have computed a part each. So the
result is the same bit for bit.
"""

from kernels.cpu.attention.records import (
    AttentionItem,
    AttentionRecord,
    PlanRecord,
    ScoringRecord,
    first_seen,
    last_seen,
)
from kernels.cpu.attention.sizes import PART, partial_bytes, row_values
from kernels.cpu.attention.softmax import NOTHING, add_sink, at_least_lowest
from kernels.cpu.attention.vector_loops import clear
from kernels.cpu.compiler.language import Static, float32, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import Element
from kernels.cpu.isa.exp import precise_exp
from kernels.cpu.isa.lanes import larger
from kernels.cpu.isa.shuffles import repeat_lane
from kernels.cpu.isa.simd import fma, load_f32, store_f32
from kernels.cpu.isa.vectors import read_f32


def _divide(element: Static[Element], sums: int, total: int, out: int, head_dim: int) -> None:
    """out = sums / total, rounded. One division: it takes as long as ten products."""
    factor = f32x16(float32(float32(1.0) / read_f32(total)))
    for i in range(0, head_dim - 15, 16):
        element.store(out + element.size * i, load_f32(sums + 4 * i) * factor)
    rest = head_dim % 16
    if rest:
        i = head_dim - rest
        element.store_first(out + element.size * i, load_f32(sums + 4 * i) * factor, rest)


def merge_part(to: int, part: int, value_dim: int) -> None:
    """Adds one part's result to that of the parts before it: addresses. A part in which a pair sees nothing
    changes no bit of it."""
    width = 4 * row_values(value_dim)
    totals, scores = 8 * width, 8 * width + 64
    before, own = load_f32(to + scores), load_f32(part + scores)
    largest = larger(own, before)
    subtracted = at_least_lowest(largest)
    factor, own_factor = precise_exp(before - subtracted), precise_exp(own - subtracted)
    for m in unroll(range(8)):
        of_pair, own_of_pair = repeat_lane(factor, m), repeat_lane(own_factor, m)
        for at in range(width * m, width * m + width, 64):
            _add_scaled(to + at, part + at, of_pair, own_of_pair)
    _add_scaled(to + totals, part + totals, factor, own_factor)
    store_f32(to + scores, largest)


def _add_scaled(to: int, part: int, factor: f32x16, own_factor: f32x16) -> None:
    """16 values of both, each times its factor."""
    store_f32(to, fma(load_f32(to), factor, load_f32(part) * own_factor))


def write_result(
    element: Static[Element],
    record: AttentionRecord,
    item: AttentionItem,
    head: int,
    partial: int,
    lane: int,
) -> None:
    """Of all parts, rounded: what the item's queries get. lane: the first one's number in the result."""
    stride, group, value_dim, first = record.out_stride, record.group, record.value_dim, item.first
    out = record.out + item.token * stride + element.size * head * group * value_dim
    width = 4 * row_values(value_dim)
    if record.scoring and ScoringRecord.at(record.scoring).sinks:
        _add_sinks(record, item, head, partial + 8 * width, lane)
    for m in range(item.pairs):
        to = out + (first + m) // group * stride + element.size * ((first + m) % group * value_dim)
        total = partial + 8 * width + 4 * (lane + m)
        _divide(element, partial + width * (lane + m), total, to, value_dim)


def _add_sinks(record: AttentionRecord, item: AttentionItem, head: int, totals: int, lane: int) -> None:
    """To the sums of an item's pairs, which begin at a lane."""
    sinks, group = ScoringRecord.at(record.scoring).sinks + 4 * head * record.group, record.group
    for m in range(item.pairs):
        add_sink(totals + 4 * (lane + m), sinks + 4 * ((item.first + m) % group))


def first_part(plan: PlanRecord, item: AttentionItem, group: int) -> int:
    """That the first query of an item sees something of."""
    return first_seen(plan, item.start + item.first // group) // PART


def last_part(plan: PlanRecord, item: AttentionItem, group: int) -> int:
    """That the last query of an item sees something of."""
    return last_seen(plan, item, item.start + (item.first + item.pairs - 1) // group) // PART


def place_of_part(
    plan: PlanRecord, record: AttentionRecord, item: AttentionItem, head: int, part: int
) -> int:
    """Address of the result of a part of a row that is split. item: of any of its parts."""
    index = (item.slot - item.part + part) * record.kv_heads + head
    return plan.partials + record.partial_set * plan.set_bytes + index * partial_bytes(record.value_dim)


def combine_rows(
    element: Static[Element], record: AttentionRecord, first: int, count: int, thread: int
) -> None:
    """After attention with the same record. Items of a row's last part make the result of all; the others
    have nothing to do.

    Nothing is changed in place: the sums are in the thread's scratch memory.
    """
    plan = PlanRecord.at(record.plan)
    kv_heads, group, value_dim = record.kv_heads, record.group, record.value_dim
    sums, totals = plan.scratch + thread * plan.scratch_bytes, 32 * row_values(value_dim)
    for unit in range(first, first + count):
        item, head = AttentionItem.at(plan.items, unit // kv_heads), unit % kv_heads
        last = last_part(plan, item, group)
        if item.part != last:
            continue
        clear(sums, totals // 64 + 1)
        store_f32(sums + totals + 64, f32x16(NOTHING))
        for part in range(first_part(plan, item, group), last + 1):
            other = place_of_part(plan, record, item, head, part)
            merge_part(sums, other, value_dim)
        write_result(element, record, item, head, sums, 0)
