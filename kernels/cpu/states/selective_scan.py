"""kernels.ops.states.selective_scan.selective_scan, a head of one row at a time, token by token: sums go over
the values of c in their order, so that no bit depends on how a row is cut into steps."""

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import Element, by_dtype
from kernels.cpu.isa.exp import precise_exp, softplus
from kernels.cpu.isa.simd import fma, load_f32, load_first_f32, store_f32, store_first_f32, sum_in_order
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64
from kernels.cpu.states.records import SelectiveScanRecord, Span
from kernels.cpu.states.row_state import clear, copy, replay, save
from kernels.ops.states.update_log import padded, update_width


def scratch_bytes(state_size: int, head_dim: int) -> int:
    """For what a token does to a state (kernels.ops.states.update_log), and a state."""
    return 4 * (update_width(state_size, head_dim) + state_size * head_dim)


def _scan_32(
    state: int,
    b: int,
    c: int,
    x: int,
    change: int,
    out: int,
    decay: f32x16,
    size: f32x16,
    skip: f32x16,
    n: int,
    row: int,
) -> None:
    """32 values of a head. n: values of b and c. row: bytes from one of them to the next in the state.
    change: where to write what is added to each, times b."""
    values, values_2 = load_f32(x), load_f32(x + 64)
    added, added_2 = values * size, values_2 * size
    store_f32(change, added)
    store_f32(change + 64, added_2)
    total, total_2 = values * skip, values_2 * skip
    for i in range(n):
        at, factor, weight = state + row * i, f32x16(read_f32(b + 4 * i)), f32x16(read_f32(c + 4 * i))
        new = fma(factor, added, load_f32(at) * decay)
        new_2 = fma(factor, added_2, load_f32(at + 64) * decay)
        store_f32(at, new)
        store_f32(at + 64, new_2)
        total = fma(new, weight, total)
        total_2 = fma(new_2, weight, total_2)
    store_f32(out, total)
    store_f32(out + 64, total_2)


def _scan_few(
    state: int,
    b: int,
    c: int,
    x: int,
    change: int,
    out: int,
    decay: f32x16,
    size: f32x16,
    skip: f32x16,
    n: int,
    row: int,
    left: int,
) -> None:
    """At most 16 values of a head; see _scan_32()."""
    values = load_first_f32(x, left)
    added, total = values * size, values * skip
    store_f32(change, added)
    for i in range(n):
        at, factor, weight = state + row * i, f32x16(read_f32(b + 4 * i)), f32x16(read_f32(c + 4 * i))
        new = fma(factor, added, load_first_f32(at, left) * decay)
        store_first_f32(at, new, left)
        total = fma(new, weight, total)
    store_first_f32(out, total, left)


def _scan_token(
    element: Static[Element],
    record: SelectiveScanRecord,
    token: int,
    head: int,
    state: int,
    update: int,
) -> None:
    """By one head. update: where to write what the token does to the state, but for b."""
    heads, width, n = record.heads, record.head_dim, record.state_size
    rates = record.rates + 4 * head
    rate, bias = read_f32(rates), read_f32(rates + 4 * heads)
    skip = f32x16(read_f32(rates + 8 * heads))
    step = element.load_first(record.steps + element.size * (record.stride * token + head), 1)
    size = softplus(f32x16(sum_in_order(step)) * record.step_factor + bias)  # in each lane
    decay = precise_exp(size * (0.0 - rate))
    mixed = record.mixed + 4 * (heads * width + 2 * record.groups * n) * token
    b = mixed + 4 * (heads * width + head // (heads // record.groups) * n)
    c, x = b + 4 * record.groups * n, mixed + 4 * width * head
    change, out = update + 4 * padded(n), record.out + 4 * width * (heads * token + head)
    store_first_f32(change + 4 * padded(width), decay, 1)
    whole = width // 32 * 32
    for at in range(0, 4 * whole, 128):
        _scan_32(state + at, b, c, x + at, change + at, out + at, decay, size, skip, n, 4 * width)
    for j in range(whole, width, LANES):
        at = 4 * j
        left = min(LANES, width - j)
        _scan_few(state + at, b, c, x + at, change + at, out + at, decay, size, skip, n, 4 * width, left)


def _log_b(record: SelectiveScanRecord, token: int, head: int, update: int) -> None:
    """Of a token and a head."""
    values, n = record.heads * record.head_dim, record.state_size
    channels, group = values + 2 * record.groups * n, head // (record.heads // record.groups)
    copy(record.mixed + 4 * (channels * token + values + group * n), update, n)


def _scan(element: Static[Element], record: SelectiveScanRecord, span: Span, head: int, scratch: int) -> None:
    """All tokens of a span, by one head."""
    heads, width, n = record.heads, record.head_dim, record.state_size
    size, entry, place = 4 * n * width, 4 * update_width(n, width), heads * span.row + head
    state, log = record.state + size * place, record.log + entry * record.drafts * place
    drafted = scratch + entry  # the state that drafted tokens change
    if span.start == 0:
        clear(state, n * width)
    if span.replayed > 0:
        replay(state, log, span.replayed, n, width)
    for at in range(span.certain):
        _scan_token(element, record, span.first + at, head, state, scratch)
        save(span, at + 1, record.state, size * heads, size * head, n * width)
    if span.certain < span.count:
        copy(state, drafted, n * width)
    for at in range(span.certain, span.count):
        logged = log + entry * (at - span.certain)
        _log_b(record, span.first + at, head, logged)
        _scan_token(element, record, span.first + at, head, drafted, logged)


@by_dtype
def selective_scan(
    element: Static[Element], record: SelectiveScanRecord, first: int, count: int, thread: int
) -> None:
    """Computes heads first .. first + count - 1: those of the first span, then of the next one. element: of
    steps."""
    scratch, heads = read_i64(record.scratch + 8 * thread), record.heads
    for unit in range(first, first + count):
        _scan(element, record, Span.at(record.spans, unit // heads), unit % heads, scratch)
