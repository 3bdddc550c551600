"""Attention over a part of a row's positions, and what the parts of a row make together.

A part is PART positions, counted from the row's first one. Its result, of up to 8 (query, head) pairs:

    0           sums     [8, D] float32    of p * v, with p = exp(scale * score - largest)
    32 D        totals   [16] float32      of p
    32 D + 64   largest  [16] float32      of scale * score; -inf where the pair sees nothing

    merged   largest    max(before, own)
             sums       sums * exp(before - largest) + sums of this part * exp(own - largest)
             totals     likewise

 Parts are merged one after the other, in ascending order, wherever that is done: by the
thread that computes them all, or by combine_parts() after several threads have computed a part each. So the
result is the same bit for bit.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu.attention.records import AttentionItem, AttentionRecord, PlanRecord, ScoringRecord
from kernels.cpu.attention.scoring import add_sink
from kernels.cpu.attention.softmax import NOTHING, at_least_lowest
from kernels.cpu.attention.vector_loops import PART, clear
from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.exp import exp
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32,
    F32S,
    I32S,
    broadcast,
    call,
    load,
    repeat,
    store,
    word,
)


@intrinsic(types.void(*[types.int64] * 4))
def _merge(builder: Any, to: Any, part: Any, totals: Any, vectors: Any) -> None:
    """Adds one part's result to that of the parts before it: addresses. totals: bytes before them. vectors:
    registers of a pair's sums. A part in which a pair sees nothing changes no bit of it."""
    largest = builder.add(totals, word(64))
    before, own = (load(builder, builder.add(at, largest), F32S) for at in (to, part))
    larger = builder.select(builder.fcmp_ordered(">", own, before), own, before)
    subtracted = at_least_lowest(builder, larger)
    factors = [exp(builder, builder.fsub(scores, subtracted)) for scores in (before, own)]

    def add(offset: Any, factors: list[Any]) -> None:
        at, other = (builder.add(address, offset) for address in (to, part))
        product = builder.fmul(load(builder, other, F32S), factors[1])
        merged = call(builder, "llvm.fma.v16f32", F32S, load(builder, at, F32S), factors[0], product)
        store(builder, merged, at)

    nothing = ir.Constant(F32S, ir.Undefined)
    for m in range(8):
        lane = ir.Constant(I32S, [m] * 16)
        of_pair = [builder.shuffle_vector(factor, nothing, lane) for factor in factors]
        row = builder.mul(vectors, word(64 * m))

        def add_sums(v: Any, empty: list[Any], row: Any = row, of_pair: list[Any] = of_pair) -> list[Any]:
            add(builder.add(row, builder.mul(v, word(64))), of_pair)
            return empty

        repeat(builder, vectors, [], add_sums)
    add(totals, factors)
    store(builder, larger, builder.add(to, largest))


@intrinsic(types.void(*[types.int64] * 4))
def _divide(builder: Any, sums: Any, total: Any, out: Any, vectors: Any) -> None:
    """out = sums / total, rounded: so many registers. One division: it takes as long as ten products."""
    factor = broadcast(builder, builder.fdiv(ir.Constant(F32, 1.0), load(builder, total, F32)))

    def write(v: Any, nothing: list[Any]) -> list[Any]:
        quotient = builder.fmul(load(builder, builder.add(sums, builder.mul(v, word(64))), F32S), factor)
        store(
            builder,
            OPERATIONS.round_to_bfloat16(builder, quotient),
            builder.add(out, builder.mul(v, word(32))),
        )
        return nothing

    repeat(builder, vectors, [], write)


@intrinsic(types.void(types.int64))
def _write_nothing(builder: Any, to: Any) -> None:
    """To the largest scores."""
    store(builder, ir.Constant(F32S, [NOTHING] * 16), to)


def partial_bytes(head_dim: int) -> int:
    """Of a part's result."""
    return 32 * head_dim + 128


def merge_part(to: int, part: int, head_dim: int) -> None:
    """Addresses of results: of the parts before, and of this one."""
    _merge(to, part, 32 * head_dim, head_dim // 16)


def write_result(record: AttentionRecord, item: AttentionItem, head: int, partial: int, lane: int) -> None:
    """Of all parts, rounded: what the item's queries get. lane: the first one's number in the result."""
    stride, group, head_dim, first = record.out_stride, record.group, record.head_dim, item.first
    out = record.out + item.token * stride + 2 * head * group * head_dim
    if record.scoring and ScoringRecord.at(record.scoring).sinks:
        _add_sinks(record, item, head, partial + 32 * head_dim, lane)
    for m in range(item.pairs):
        to = out + (first + m) // group * stride + 2 * ((first + m) % group * head_dim)
        sums, total = 4 * head_dim * (lane + m), 32 * head_dim + 4 * (lane + m)
        _divide(partial + sums, partial + total, to, head_dim // 16)


def _add_sinks(record: AttentionRecord, item: AttentionItem, head: int, totals: int, lane: int) -> None:
    """To the sums of an item's pairs, which begin at a lane."""
    sinks, group = ScoringRecord.at(record.scoring).sinks + 4 * head * record.group, record.group
    for m in range(item.pairs):
        add_sink(totals + 4 * (lane + m), sinks + 4 * ((item.first + m) % group))


def first_part(plan: PlanRecord, item: AttentionItem, group: int) -> int:
    """That the first query of an item sees something of."""
    if plan.window == 0:
        return 0
    return max(0, item.start + item.first // group - plan.window + 1) // PART


def last_part(item: AttentionItem, group: int) -> int:
    """That the last query of an item sees something of."""
    return (item.start + (item.first + item.pairs - 1) // group) // PART


def place_of_part(
    plan: PlanRecord, record: AttentionRecord, item: AttentionItem, head: int, part: int
) -> int:
    """Address of the result of a part of a row that is split. item: of any of its parts."""
    index = (item.slot - item.part + part) * record.kv_heads + head
    return plan.partials + record.partial_set * plan.set_bytes + index * partial_bytes(record.head_dim)


@operation
def combine_parts(record: AttentionRecord, first: int, count: int, thread: int) -> None:
    """After kernels.cpu.attention.attention.attention with the same record. Items of a row's last part make
    the result of all; the others have nothing to do.

    Nothing is changed in place: the sums are in the thread's scratch memory.
    """
    plan = PlanRecord.at(record.plan)
    kv_heads, group, head_dim = record.kv_heads, record.group, record.head_dim
    sums = plan.scratch + thread * plan.scratch_bytes
    for unit in range(first, first + count):
        item, head = AttentionItem.at(plan.items, unit // kv_heads), unit % kv_heads
        last = last_part(item, group)
        if item.part != last:
            continue
        clear(sums, head_dim // 2 + 1)
        _write_nothing(sums + 32 * head_dim + 64)
        for part in range(first_part(plan, item, group), last + 1):
            other = place_of_part(plan, record, item, head, part)
            merge_part(sums, other, head_dim)
        write_result(record, item, head, sums, 0)
