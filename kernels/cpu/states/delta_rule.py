"""kernels.ops.states.delta_rule.delta_rule, a head of one row at a time, token by token: sums go over the
keys in their order, so that no bit depends on how a row is cut into steps."""

from kernels.cpu.compiler.language import Static, float32
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32, Element, by_dtype
from kernels.cpu.isa.exp import precise_exp, softplus
from kernels.cpu.isa.simd import (
    fma,
    load_f32,
    load_first_f32,
    sqrt,
    store_f32,
    store_first_f32,
    sum_in_order,
)
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64
from kernels.cpu.states.records import DeltaRuleRecord, Span
from kernels.cpu.states.row_state import clear, copy, replay, save
from kernels.ops.states.update_log import padded, update_width

EPS = 1e-6
"""Is added to the sum of squares of a query or key."""


def scratch_bytes(key_dim: int, value_dim: int) -> int:
    """For a query of length 1, what a token does to a state (kernels.ops.states.update_log), and a state."""
    return 4 * (padded(key_dim) + update_width(key_dim, value_dim) + key_dim * value_dim)


def _write_gates(
    element: Static[Element], record: DeltaRuleRecord, token: int, head: int, gates: int
) -> None:
    """What a head keeps of its state before a token, and the share of the difference that it learns."""
    b = record.gates + element.size * (record.stride * token + head)
    bias, decay = read_f32(record.bias + 4 * head), read_f32(record.decay + 4 * head)
    rate = softplus(element.load_first(b + element.size * record.value_heads, 1) + bias)
    store_first_f32(gates, precise_exp(rate * (0.0 - decay)), 1)
    store_first_f32(gates + 4, FLOAT32.times_sigmoid(f32x16(1.0), element.load_first(b, 1)), 1)


def _write_unit(x: int, out: int, width: int, length: float) -> None:
    """A vector of this direction and length."""
    squares = f32x16(0.0)
    for i in range(0, width, LANES):
        values = load_first_f32(x + 4 * i, min(LANES, width - i))
        squares = fma(values, values, squares)
    factor = float32(float32(length) / sqrt(float32(sum_in_order(squares) + float32(EPS))))
    for i in range(0, width, LANES):
        store_f32(out + 4 * i, load_first_f32(x + 4 * i, min(LANES, width - i)) * factor)


def _learn_few(
    state: int,
    query: int,
    key: int,
    change: int,
    value: int,
    out: int,
    gates: int,
    keys: int,
    stride: int,
    left: int,
) -> None:
    """At most 16 values of a head. stride: bytes from key to key of the state."""
    kept = f32x16(0.0)
    for i in range(keys):
        kept = fma(load_first_f32(state + stride * i, left), f32x16(read_f32(key + 4 * i)), kept)
    decay = f32x16(read_f32(gates))
    delta = (load_first_f32(value, left) - kept * decay) * read_f32(gates + 4)
    store_f32(change, delta)
    total = f32x16(0.0)
    for i in range(keys):
        at = state + stride * i
        new = fma(f32x16(read_f32(key + 4 * i)), delta, load_first_f32(at, left) * decay)
        store_first_f32(at, new, left)
        total = fma(new, f32x16(read_f32(query + 4 * i)), total)
    store_first_f32(out, total, left)


def _learn_32(
    state: int,
    query: int,
    key: int,
    change: int,
    value: int,
    out: int,
    gates: int,
    keys: int,
    stride: int,
) -> None:
    """32 values of a head."""
    kept, kept_2 = f32x16(0.0), f32x16(0.0)
    for i in range(keys):
        at, factor = state + stride * i, f32x16(read_f32(key + 4 * i))
        kept = fma(load_f32(at), factor, kept)
        kept_2 = fma(load_f32(at + 64), factor, kept_2)
    decay, share = f32x16(read_f32(gates)), read_f32(gates + 4)
    delta = (load_f32(value) - kept * decay) * share
    delta_2 = (load_f32(value + 64) - kept_2 * decay) * share
    store_f32(change, delta)
    store_f32(change + 64, delta_2)
    total, total_2 = f32x16(0.0), f32x16(0.0)
    for i in range(keys):
        at, factor, weight = (
            state + stride * i,
            f32x16(read_f32(key + 4 * i)),
            f32x16(read_f32(query + 4 * i)),
        )
        new = fma(factor, delta, load_f32(at) * decay)
        new_2 = fma(factor, delta_2, load_f32(at + 64) * decay)
        store_f32(at, new)
        store_f32(at + 64, new_2)
        total = fma(new, weight, total)
        total_2 = fma(new_2, weight, total_2)
    store_f32(out, total)
    store_f32(out + 64, total_2)


def _learn_token(
    element: Static[Element],
    record: DeltaRuleRecord,
    token: int,
    head: int,
    state: int,
    query: int,
    update: int,
) -> None:
    """By one head. query: memory for one. update: where to write what the token does to the state."""
    heads, keys, values = record.value_heads, record.key_dim, record.value_dim
    group = head // (heads // record.key_heads)
    mixed = record.mixed + 4 * (2 * record.key_heads * keys + heads * values) * token
    change, gates = update + 4 * padded(keys), update + 4 * (padded(keys) + padded(values))
    _write_unit(mixed + 4 * keys * group, query, keys, float32(1.0) / sqrt(float32(keys)))
    _write_unit(mixed + 4 * keys * (record.key_heads + group), update, keys, 1.0)
    _write_gates(element, record, token, head, gates)
    value = mixed + 4 * (2 * record.key_heads * keys + head * values)
    out = record.out + 4 * values * (heads * token + head)
    whole = values // 32 * 32
    for at in range(0, 4 * whole, 128):
        _learn_32(state + at, query, update, change + at, value + at, out + at, gates, keys, 4 * values)
    for j in range(whole, values, LANES):
        left = min(LANES, values - j)
        at = 4 * j
        _learn_few(
            state + at, query, update, change + at, value + at, out + at, gates, keys, 4 * values, left
        )


def _learn(element: Static[Element], record: DeltaRuleRecord, span: Span, head: int, scratch: int) -> None:
    """All tokens of a span, by one head."""
    heads, keys, values = record.value_heads, record.key_dim, record.value_dim
    size, entry, place = 4 * keys * values, 4 * update_width(keys, values), heads * span.row + head
    state, log = record.state + size * place, record.log + entry * record.drafts * place
    update = scratch + 4 * padded(keys)
    drafted = update + entry  # the state that drafted tokens change
    if span.start == 0:
        clear(state, keys * values)
    if span.replayed > 0:
        replay(state, log, span.replayed, keys, values)
    for at in range(span.certain):
        _learn_token(element, record, span.first + at, head, state, scratch, update)
        save(span, at + 1, record.state, size * heads, size * head, keys * values)
    if span.certain < span.count:
        copy(state, drafted, keys * values)
    for at in range(span.certain, span.count):
        logged = log + entry * (at - span.certain)
        _learn_token(element, record, span.first + at, head, drafted, scratch, logged)


@by_dtype
def delta_rule(
    element: Static[Element], record: DeltaRuleRecord, first: int, count: int, thread: int
) -> None:
    """Computes heads first .. first + count - 1: those of the first span, then of the next one. element: of
    gates."""
    scratch, heads = read_i64(record.scratch + 8 * thread), record.value_heads
    for unit in range(first, first + count):
        _learn(element, record, Span.at(record.spans, unit // heads), unit % heads, scratch)
