"""Applies the adapters of a step to the outputs of one layer: kernels.ops.layers.adapters.

A unit is a token. The products of one sum follow one another, k after k, so that other sums must fill the
time between them: those of several tokens with the same adapter, which read its weights once; or of four
tokens, each with its own, where these have the same shape in this layer. Sums do not depend on which tokens
are computed together.
"""

from typing import Any

from kernels.cpu.adapters.records import (
    AT_ONCE,
    MOST_AT_ONCE,
    T_BYTES,
    AdaptedLayer,
    AdaptedPart,
    AdaptRecord,
    strip_bytes,
    x_bytes,
)
from kernels.cpu.compiler.cache import operation_for
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element, by_dtype
from kernels.cpu.isa.lanes import as_f32
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.simd import fma, load_f32, load_i32, prefetch, store_f32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64

SHARED_AT_ONCE = AT_ONCE if OPERATIONS.rereads_weights else MOST_AT_ONCE
"""Tokens with one adapter: as many as there are registers for."""
AHEAD = 1024
"""Bytes between weights and those that are prefetched with them. Of an adapter all lie in the order in which
they are read."""


def _layer(record: AdaptRecord, row: int) -> AdaptedLayer:
    return AdaptedLayer.at(read_i64(record.adapters + 8 * row), record.layer)


def _part(record: AdaptRecord, row: int, number: int) -> AdaptedPart:
    return AdaptedPart.at(_layer(record, row).parts, number)


def _are_alike(record: AdaptRecord, row: int) -> bool:
    """Whether the adapters of this row and of the next ones have the same shape here."""
    count = _layer(record, row).count
    for other in range(row + 1, row + AT_ONCE):
        if _layer(record, other).count != count:
            return False
        for number in range(count):
            part, like = _part(record, other, number), _part(record, row, number)
            if part.rank != like.rank or part.first != like.first or part.columns != like.columns:
                return False
            if part.a_is_wide != like.a_is_wide or part.b_is_wide != like.b_is_wide:
                return False
            if (part.a == 0) != (like.a == 0):
                return False
    return True


def _widen(element: Static[Element], x: int, to: int, width: int) -> None:
    """Writes a token's inputs as float32."""
    for i in range(0, width, LANES):
        store_f32(to + 4 * i, element.load_first(x + element.size * i, width - i))


def _pair(is_wide: Static[bool], at: int) -> tuple[f32x16, f32x16]:
    """Weights of two inputs that follow one another."""
    if is_wide:
        return load_f32(at), load_f32(at + 64)
    words = load_i32(at)
    return as_f32(words << 16), as_f32(words & -65536)


def _sums(
    is_wide: Static[bool],
    tokens: Static[int],
    shared: Static[bool],
    weights: list[Any],
    x: int,
    pitch: int,
    width: int,
    sums: list[Any],
) -> None:
    """Adds the products of a strip of each token's weights and its inputs. weights: addresses. x: that of the
    first token's inputs, float32; pitch: bytes to those of the next one; width: their number, and where it is
    odd, a zero follows. shared: the tokens have the same weights."""
    step = 128 if is_wide else 64
    for k in range((width + 1) // 2):
        first, second = _pair(is_wide, weights[0] + step * k)
        for m in unroll(range(tokens)):
            if not shared:
                prefetch(weights[m] + step * k + AHEAD)
                if m > 0:
                    first, second = _pair(is_wide, weights[m] + step * k)
            sums[m] = fma(first, f32x16(read_f32(x + pitch * m + 8 * k)), sums[m])
            sums[m] = fma(second, f32x16(read_f32(x + pitch * m + 8 * k + 4)), sums[m])


def _shrink(
    is_wide: Static[bool],
    tokens: Static[int],
    shared: Static[bool],
    record: AdaptRecord,
    row: int,
    number: int,
    x: int,
    t: int,
) -> None:
    """Writes t of a part. x: address of the widened inputs."""
    width, size = record.width, strip_bytes(record.width, is_wide)
    for strip in range((_part(record, row, number).rank + LANES - 1) // LANES):
        weights = [_part(record, row + m, number).a + strip * size for m in unroll(range(tokens))]
        sums = [f32x16(0.0) for _ in unroll(range(tokens))]
        _sums(is_wide, tokens, shared, weights, x, x_bytes(width), width, sums)
        for m in unroll(range(tokens)):
            store_f32(t + T_BYTES * m + 4 * LANES * strip, sums[m] * _part(record, row + m, number).scale)


def _expand(
    is_wide: Static[bool],
    element: Static[Element],
    tokens: Static[int],
    shared: Static[bool],
    record: AdaptRecord,
    row: int,
    number: int,
    t: int,
) -> None:
    """Adds a part to the outputs. element: of these."""
    part, pitch = _part(record, row, number), element.size * record.columns
    rank, columns, y = part.rank, part.columns, record.y + element.size * part.first
    to = [y + pitch * read_i64(record.tokens + 8 * (row + m)) for m in unroll(range(tokens))]
    for strip in range((columns + LANES - 1) // LANES):
        offset = strip * strip_bytes(rank, is_wide)
        weights = [_part(record, row + m, number).b + offset for m in unroll(range(tokens))]
        sums = [f32x16(0.0) for _ in unroll(range(tokens))]
        _sums(is_wide, tokens, shared, weights, t, T_BYTES, rank, sums)
        at, left = element.size * LANES * strip, columns - LANES * strip
        for m in unroll(range(tokens)):
            element.store_first(to[m] + at, element.load_first(to[m] + at, left) + sums[m], left)


def _adapt_tokens(
    element: Static[Element],
    y_element: Static[Element],
    tokens: Static[int],
    shared: Static[bool],
    record: AdaptRecord,
    row: int,
    thread: int,
) -> None:
    """Rows from `row` on, as many as `tokens`, whose adapters have one shape. shared: it is one adapter."""
    count, x = _layer(record, row).count, read_i64(record.scratch + 8 * thread)
    t = x + tokens * x_bytes(record.width)
    if count == 0:
        return
    for m in unroll(range(tokens)):
        at = element.size * record.width * read_i64(record.tokens + 8 * (row + m))
        _widen(element, record.x + at, x + m * x_bytes(record.width), record.width)
    for number in range(count):
        part = _part(record, row, number)
        if part.a != 0:
            if part.a_is_wide != 0:
                _shrink(True, tokens, shared, record, row, number, x, t)
            else:
                _shrink(False, tokens, shared, record, row, number, x, t)
        if part.b_is_wide != 0:
            _expand(True, y_element, tokens, shared, record, row, number, t)
        else:
            _expand(False, y_element, tokens, shared, record, row, number, t)


def _adapt_rows(
    element: Static[Element],
    y_element: Static[Element],
    record: AdaptRecord,
    first: int,
    count: int,
    thread: int,
) -> None:
    """Rows first .. first + count - 1."""
    row, end = first, first + count
    while row < end:
        left, last = end - row, record.adapters + 8 * row
        if left >= SHARED_AT_ONCE and read_i64(last) == read_i64(last + 8 * (SHARED_AT_ONCE - 1)):
            _adapt_tokens(element, y_element, SHARED_AT_ONCE, True, record, row, thread)
            row += SHARED_AT_ONCE
        elif left >= AT_ONCE and _are_alike(record, row):
            _adapt_tokens(element, y_element, AT_ONCE, False, record, row, thread)
            row += AT_ONCE
        else:
            _adapt_tokens(element, y_element, 1, True, record, row, thread)
            row += 1


@by_dtype
def adapt(element: Static[Element], record: AdaptRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.layers.adapters of rows first .. first + count - 1."""
    _adapt_rows(element, element, record, first, count, thread)


def adapt_wide(element: Static[Element], record: AdaptRecord, first: int, count: int, thread: int) -> None:
    """The same of outputs in float32."""
    _adapt_rows(element, FLOAT32, record, first, count, thread)


adapt_bfloat16_wide = operation_for(adapt_wide, BFLOAT16, suffix="_bfloat16")


def _look_up(is_wide: Static[bool], record: AdaptRecord, row: int, number: int, t: int) -> None:
    """Writes t of a part of a lookup, whose inputs are all ids."""
    part, size = _part(record, row, number), strip_bytes(record.width, is_wide)
    token_id = read_i64(record.x + 8 * read_i64(record.tokens + 8 * row))
    pair = token_id // 2 * (128 if is_wide else 64)
    for strip in range((part.rank + LANES - 1) // LANES):
        first, second = _pair(is_wide, part.a + strip * size + pair)
        if token_id % 2 == 1:
            first = second
        store_f32(t + 4 * LANES * strip, first * part.scale)


@by_dtype
def adapt_embeddings(
    element: Static[Element], record: AdaptRecord, first: int, count: int, thread: int
) -> None:
    """Computes kernels.ops.layers.adapters of rows first .. first + count - 1, of a lookup."""
    t = read_i64(record.scratch + 8 * thread)
    for row in range(first, first + count):
        for number in range(_layer(record, row).count):
            part = _part(record, row, number)
            if part.a != 0:
                if part.a_is_wide != 0:
                    _look_up(True, record, row, number, t)
                else:
                    _look_up(False, record, row, number, t)
            if part.b_is_wide != 0:
                _expand(True, element, 1, True, record, row, number, t)
            else:
                _expand(False, element, 1, True, record, row, number, t)
