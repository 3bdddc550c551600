"""Tiles of the product of kernels.cpu.matmul.packed12: some rows of x times a block, or a strip, in 12 bits.

Up to six rows multiply what was unpacked while it is in registers. Eight need those for their sums: what is
unpacked goes through memory. It is read a group later than it was written: a processor that reads at once
what it has just stored waits for that, and unpacking would cost half of what these rows' products do, not a
twentieth. Where further rows come, the whole block stays in memory for them; else its groups take turns in
two places, which stay in the first-level cache.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from kernels.cpu.compiler import types
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import (
    F32S,
    I32,
    I32S,
    LANES,
    broadcast,
    first_lanes,
    load,
    prefetch,
    repeat,
    word,
    zeros,
)
from kernels.cpu.matmul.unpack12 import (
    AHEAD,
    GROUP,
    STRIP_BYTES,
    WORDS,
    Strip,
    lists_of_strips,
    table_of,
    unpack,
    write_rare,
    write_words,
)
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS

FEW, FIVE, SIX, FIRST = 4, 5, 6, 8
"""Rows of the tiles that unpack; the last one writes what it unpacks."""
IN_TURNS, ALL = 1, -1
"""Which groups it leaves in memory: the last two, or all, for further rows."""

EVERY = 5
"""Rows of a word, between which something is unpacked: 6 times in 4 words of 8 rows. As many of each part,
where words are multiplied in parts (kernels.cpu.isa.dot)."""


@dataclass(frozen=True)
class _Weight:
    """A block or a strip, in 12 bits. All but the number are values of LLVM; addresses."""

    builder: Any
    at: Any
    soon: Any  # the block that comes next
    groups: Any
    table: Any
    vectors: int  # strips

    def ask(self, group: Any) -> None:
        """For a group that comes AHEAD groups later, in this block or in the next one."""
        builder, later = self.builder, self.builder.add(group, word(AHEAD))
        behind = builder.sub(later, self.groups)
        inside = builder.icmp_signed("<", behind, word(0))
        at = builder.mul(builder.select(inside, later, behind), word(GROUP))
        at = builder.add(builder.select(inside, self.at, self.soon), at)
        for line in range(0, STRIP_BYTES * self.vectors, 64):
            prefetch(builder, builder.add(at, word(line)))

    def strips(self, group: Any) -> list[Strip]:
        """Side by side."""
        builder = self.builder
        at = builder.add(self.at, builder.mul(group, word(GROUP)))
        return [
            Strip(builder, builder.add(at, word(STRIP_BYTES * v)), self.table) for v in range(self.vectors)
        ]


@intrinsic(types.void(*[types.int64] * 5))
def unpack_strip(builder: Any, w: Any, rare: Any, base: Any, groups: Any, out: Any) -> None:
    """As kernels.cpu.matmul.packed has it. rare: address of the address of its list."""
    weight = _Weight(builder, w, w, groups, table_of(builder, base), 1)

    def unpack_group(group: Any, lists: list[Any]) -> list[Any]:
        weight.ask(group)
        to = _at_group(builder, out, group)
        list(_written(weight, group, to))
        return write_rare(builder, weight.strips(group), lists, to)

    repeat(builder, groups, lists_of_strips(builder, rare, 1), unpack_group)


def _at_group(builder: Any, kept: Any, group: Any) -> Any:
    """Address of a group's words, as kernels.cpu.matmul.packed has them."""
    return builder.add(kept, builder.mul(group, word(WORDS * 4 * COLUMNS)))


def _written(weight: _Weight, group: Any, to: Any) -> Iterator[None]:
    """Writes a group's words as if no number were rare, two of a strip whenever it is resumed."""
    for half in (0, 1):
        for v, strip in enumerate(weight.strips(group)):
            write_words(weight.builder, strip.two_words(half), 2 * half, v, to)
            yield


def _add_group(
    builder: Any,
    rows: list[Any],
    group: Any,
    weights: Callable[[int], list[Any]],
    sums: list[Any],
    meanwhile: Iterator[None] | None = None,
) -> list[Any]:
    """The sums of each row, and a group's products with it. rows: addresses of the parts of their words.
    weights: registers of each of the group's words. meanwhile: is resumed between the rows."""
    dot, steps = OPERATIONS.pairs, 0
    size = 4 * dot.parts
    totals, x_at = list(sums), builder.mul(group, word(size * WORDS))
    for place in range(WORDS):
        parts = [dot.weights(builder, of_strip) for of_strip in weights(place)]
        for part in range(dot.parts):
            for m, row in enumerate(rows):
                at = builder.add(builder.add(row, x_at), word(size * place + 4 * part))
                value = broadcast(builder, load(builder, at, I32))
                for v, of_strip in enumerate(parts):
                    i = m * len(parts) + v
                    totals[i] = dot.add(builder, totals[i], of_strip[part], value)
                steps += 1
                if meanwhile and steps % (EVERY * dot.parts) == 0:
                    next(meanwhile, None)
    return totals


def _multiply_unpacked(weight: _Weight, rows: list[Any], sums: list[Any], lists: list[Any]) -> list[Any]:
    """The sums, of what was unpacked into registers."""
    builder = weight.builder

    def multiply(group: Any, before: list[Any]) -> list[Any]:
        weight.ask(group)
        words, after = unpack(builder, weight.strips(group), before[len(sums) :])

        def weights(place: int) -> list[Any]:
            return [builder.bitcast(of_strip[place], I32S) for of_strip in words]

        return [*_add_group(builder, rows, group, weights, before[: len(sums)]), *after]

    return repeat(builder, weight.groups, [*sums, *lists], multiply)[: len(sums)]


def _multiply_kept(
    weight: _Weight, rows: list[Any], sums: list[Any], lists: list[Any], kept: Any, keeps: Any
) -> list[Any]:
    """The sums, of what was unpacked into memory: while a group is multiplied, the next one is written. Rare
    numbers are put in before it is multiplied. The weight has at least 2 groups. keeps: IN_TURNS or ALL."""
    builder = weight.builder

    def place_of(group: Any) -> Any:
        return _at_group(builder, kept, builder.and_(group, keeps))

    def multiply(group: Any, before: list[Any], written: Iterator[None] | None) -> list[Any]:
        sums, lists = before[: -weight.vectors], before[-weight.vectors :]
        at = place_of(group)
        after = write_rare(builder, weight.strips(group), lists, at)

        def weights(place: int) -> list[Any]:
            word_at = builder.add(at, word(4 * COLUMNS * place))
            return [load(builder, builder.add(word_at, word(64 * v)), I32S) for v in range(weight.vectors)]

        return [*_add_group(builder, rows, group, weights, sums, written), *after]

    def multiply_and_write(group: Any, before: list[Any]) -> list[Any]:
        later = builder.add(group, word(1))
        weight.ask(later)
        return multiply(group, before, _written(weight, later, place_of(later)))

    weight.ask(word(0))
    list(_written(weight, word(0), kept))
    last = builder.sub(weight.groups, word(1))
    return multiply(last, repeat(builder, last, [*sums, *lists], multiply_and_write), None)[: len(sums)]


def _write_columns(
    builder: Any, columns: Any, width: Any, vector: int, results: list[Any], rows: list[Any]
) -> None:
    """16 columns of each row, as far as they exist: so many from the first vector on. width: bytes of a
    result; 4: float32, 2: bfloat16. rows: their addresses."""
    left = builder.sub(columns, word(vector * LANES))
    mask, whole = first_lanes(builder, left), builder.icmp_signed(">=", left, word(LANES))
    offset = builder.mul(width, word(vector * LANES))
    to = [builder.add(row, offset) for row in rows]
    with builder.if_else(builder.icmp_signed("==", width, word(4))) as (wide, narrow):
        with wide:
            for result, address in zip(results, to, strict=True):
                OPERATIONS.store_first(builder, result, address, mask, whole)
        with narrow:
            for result, address in zip(results, to, strict=True):
                halves = OPERATIONS.round_to_bfloat16(builder, result)
                OPERATIONS.store_first(builder, halves, address, mask, whole)


def _make_tile(num_rows: int, vectors: int) -> Any:
    """tile(x, stride, last, w, soon, rare, base, groups, kept, keeps, params, out, out_stride, columns,
    width): so many rows of 16 * vectors columns. x: address of the parts of their words. last: number of the
    last row that exists; those behind it are computed as it is. soon: address of the block that comes next.
    FIRST rows leave groups at `kept` as kernels.cpu.matmul.packed has them: IN_TURNS or ALL."""

    @intrinsic(types.void(*[types.int64] * 15))
    def tile(
        builder: Any,
        x: Any,
        stride: Any,
        last: Any,
        w: Any,
        soon: Any,
        rare: Any,
        base: Any,
        groups: Any,
        kept: Any,
        keeps: Any,
        params: Any,
        out: Any,
        out_stride: Any,
        columns: Any,
        width: Any,
    ) -> None:
        numbers = [
            builder.select(builder.icmp_signed("<", word(m), last), word(m), last) for m in range(num_rows)
        ]
        rows = [builder.add(x, builder.mul(stride, number)) for number in numbers]
        out_rows = [builder.add(out, builder.mul(out_stride, number)) for number in numbers]
        weight = _Weight(builder, w, soon, groups, table_of(builder, base), vectors)
        sums, lists = zeros(num_rows * vectors), lists_of_strips(builder, rare, vectors)
        if num_rows == FIRST:
            totals = _multiply_kept(weight, rows, sums, lists, kept, keeps)
        else:
            totals = _multiply_unpacked(weight, rows, sums, lists)
        for v in range(vectors):
            bias = load(builder, builder.add(params, word(64 * v)), F32S)
            results = [builder.fadd(total, bias) for total in totals[v::vectors]]
            _write_columns(builder, columns, width, v, results, out_rows)

    return tile


one_row, one_row_of_strip = _make_tile(1, VECTORS), _make_tile(1, 1)
two_rows, few_rows = _make_tile(2, VECTORS), _make_tile(FEW, VECTORS)
five_rows, six_rows = _make_tile(FIVE, VECTORS), _make_tile(SIX, VECTORS)
first_rows = _make_tile(FIRST, VECTORS)
