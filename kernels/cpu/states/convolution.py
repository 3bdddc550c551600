"""kernels.ops.states.convolution.convolution, a block of channels of one row at a time: a token's bits depend
on itself and the tokens before it alone."""

from kernels.cpu.compiler.language import Static
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import FLOAT32, Element, by_dtype
from kernels.cpu.isa.simd import fma, load_first_f32, store_first_f32
from kernels.cpu.isa.vectors import LANES
from kernels.cpu.states.records import ConvolutionRecord, Span

BLOCK = 128
"""Channels that a unit has: their state is written by no other one."""


def _input(
    element: Static[Element],
    record: ConvolutionRecord,
    span: Span,
    state: int,
    channel: int,
    at: int,
    left: int,
) -> f32x16:
    """Of so many channels and a token of the row, counted from the first one of the step; negative numbers
    are of tokens before it: drafted ones that were accepted, then those of the state."""
    values = f32x16(0.0)
    if at >= 0:
        token = record.x + element.size * (record.stride * (span.first + at) + channel)
        values = element.load_first(token, left)
    elif at + span.replayed >= 0:
        place = record.drafts * span.row + span.replayed + at
        values = load_first_f32(record.drafted + 4 * (record.channels * place + channel), left)
    elif span.start > 0:
        place = record.taps - 1 + at + span.replayed
        values = load_first_f32(state + 4 * record.channels * place, left)
    return values


def _state(record: ConvolutionRecord, row: int, channel: int) -> int:
    """The address of a row's state, from a channel on."""
    return record.state + 4 * (record.channels * (record.taps - 1) * row + channel)


def _keep(
    element: Static[Element],
    record: ConvolutionRecord,
    span: Span,
    behind: int,
    row: int,
    channel: int,
    left: int,
) -> None:
    """Writes what the convolution needs behind so many tokens of a span into the state of a row. From the
    oldest on, which is never needed for a later one: the row may be the span's."""
    state, target = _state(record, span.row, channel), _state(record, row, channel)
    for place in range(record.taps - 1):
        kept = _input(element, record, span, state, channel, behind - record.taps + 1 + place, left)
        store_first_f32(target + 4 * record.channels * place, kept, left)


def _convolve(
    element: Static[Element], record: ConvolutionRecord, span: Span, channel: int, left: int
) -> None:
    """So many channels of all tokens of a span, and their state."""
    taps, size = record.taps, 4 * record.channels
    state = _state(record, span.row, channel)
    for at in range(span.count):
        total = load_first_f32(record.bias + 4 * channel, left)
        for tap in range(taps):
            values = _input(element, record, span, state, channel, at - taps + 1 + tap, left)
            total = fma(values, load_first_f32(record.weight + size * tap + 4 * channel, left), total)
        out = record.out + size * (span.first + at) + 4 * channel
        store_first_f32(out, FLOAT32.times_sigmoid(total, total), left)
    if span.behind > 0:
        _keep(element, record, span, span.behind, span.target, channel, left)
    if span.behind_2 > 0:
        _keep(element, record, span, span.behind_2, span.target_2, channel, left)
    _keep(element, record, span, span.certain, span.row, channel, left)
    for at in range(span.certain, span.count):
        values = _input(element, record, span, state, channel, at, left)
        place = record.drafts * span.row + at - span.certain
        store_first_f32(record.drafted + 4 * (record.channels * place + channel), values, left)


@by_dtype
def convolution(
    element: Static[Element], record: ConvolutionRecord, first: int, count: int, thread: int
) -> None:
    """Computes blocks first .. first + count - 1: those of the first span, then of the next one."""
    blocks = (record.channels + BLOCK - 1) // BLOCK
    for unit in range(first, first + count):
        span = Span.at(record.spans, unit // blocks)
        begin = unit % blocks * BLOCK
        for channel in range(begin, min(begin + BLOCK, record.channels), LANES):
            _convolve(element, record, span, channel, min(LANES, record.channels - channel))
