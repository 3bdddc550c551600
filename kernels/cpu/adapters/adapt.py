"""Applies the adapters of a step to the outputs of one layer: kernels.ops.layers.adapters.

A unit is a token. Four tokens are computed at a time, each by its own adapter, if their adapters have the
same shape in this layer: the products of one sum follow one another, k after k, and only other sums fill the
time between them. Tokens of one adapter are neighbours, and find its weights in the first-level cache.

Sums do not depend on which tokens are computed together.
"""

from kernels.cpu.adapters.records import AT_ONCE, T_BYTES, AdaptedLayer, AdaptedPart, AdaptRecord, x_bytes
from kernels.cpu.compiler.language import Static, unroll
from kernels.cpu.compiler.vectors import f32x16
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32, Element, by_dtype
from kernels.cpu.isa.simd import fma, store_f32
from kernels.cpu.isa.vectors import LANES, read_f32, read_i64


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
            if part.a_bytes != like.a_bytes or part.b_bytes != like.b_bytes:
                return False
            if (part.a == 0) != (like.a == 0):
                return False
    return True


def _widen(element: Static[Element], x: int, to: int, width: int) -> None:
    """Writes a token's inputs as float32."""
    for i in range(0, width, LANES):
        store_f32(to + 4 * i, element.load_first(x + element.size * i, width - i))


def _shrink(
    element: Static[Element], tokens: Static[int], record: AdaptRecord, row: int, number: int, x: int, t: int
) -> None:
    """Writes t of a part. element: of its weights. x: address of the widened inputs."""
    width, pitch = record.width, x_bytes(record.width)
    size = element.size * LANES
    for strip in range((_part(record, row, number).rank + LANES - 1) // LANES):
        weights = [_part(record, row + m, number).a + strip * width * size for m in unroll(range(tokens))]
        sums = [f32x16(0.0) for _ in unroll(range(tokens))]
        for k in range(width):
            for m in unroll(range(tokens)):
                value = f32x16(read_f32(x + pitch * m + 4 * k))
                sums[m] = fma(element.load(weights[m] + size * k), value, sums[m])
        for m in unroll(range(tokens)):
            store_f32(t + T_BYTES * m + 4 * LANES * strip, sums[m] * _part(record, row + m, number).scale)


def _expand(
    element: Static[Element],
    outputs: Static[Element],
    tokens: Static[int],
    record: AdaptRecord,
    row: int,
    number: int,
    t: int,
) -> None:
    """Adds a part to the outputs. element: of its weights."""
    part, size = _part(record, row, number), element.size * LANES
    rank, columns, y = part.rank, part.columns, record.y + outputs.size * part.first
    pitch = outputs.size * record.columns
    to = [y + pitch * read_i64(record.tokens + 8 * (row + m)) for m in unroll(range(tokens))]
    for strip in range((columns + LANES - 1) // LANES):
        weights = [_part(record, row + m, number).b + strip * rank * size for m in unroll(range(tokens))]
        sums = [f32x16(0.0) for _ in unroll(range(tokens))]
        for j in range(rank):
            for m in unroll(range(tokens)):
                value = f32x16(read_f32(t + T_BYTES * m + 4 * j))
                sums[m] = fma(element.load(weights[m] + size * j), value, sums[m])
        at, left = outputs.size * LANES * strip, columns - LANES * strip
        for m in unroll(range(tokens)):
            outputs.store_first(to[m] + at, outputs.load_first(to[m] + at, left) + sums[m], left)


def _adapt_tokens(
    element: Static[Element], tokens: Static[int], record: AdaptRecord, row: int, thread: int
) -> None:
    """Rows from `row` on, as many as `tokens`, whose adapters have one shape."""
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
            if part.a_bytes == BFLOAT16.size:
                _shrink(BFLOAT16, tokens, record, row, number, x, t)
            else:
                _shrink(FLOAT32, tokens, record, row, number, x, t)
        if part.b_bytes == BFLOAT16.size:
            _expand(BFLOAT16, element, tokens, record, row, number, t)
        else:
            _expand(FLOAT32, element, tokens, record, row, number, t)


@by_dtype
def adapt(element: Static[Element], record: AdaptRecord, first: int, count: int, thread: int) -> None:
    """Computes kernels.ops.layers.adapters of rows first .. first + count - 1."""
    row, end = first, first + count
    while row < end:
        if row + AT_ONCE <= end and _are_alike(record, row):
            _adapt_tokens(element, AT_ONCE, record, row, thread)
            row += AT_ONCE
        else:
            _adapt_tokens(element, 1, record, row, thread)
            row += 1
