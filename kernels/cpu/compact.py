"""The product of kernels.compact: weights are read in 12 bits, and computed with in the 16 that they are.

    a group   4 words of k of 16 columns, of one strip after the other:
              bytes    [4, 32]  sign << 7 | fraction, of each half of 16 words
              codes    [32]     16 bits: 4 bits for each of the 4 words, see below

A vector of 32 bfloat16 is made by widening 32 bytes, and putting in between what its codes say:

    code 1 .. 15   exponent = base + code
    code 0         the number is rare: it is the next one of the strip's list, as it is

Up to eight rows multiply as they unpack: some twelve instructions per vector, while memory delivers one in
about as long. More than eight are multiplied as kernels.cpu.linear does it, with a block that the first
eight have unpacked, into a place that stays in the second-level cache.
"""

from typing import Any

from llvmlite import ir

from kernels.cpu import types
from kernels.cpu.compiler import operation
from kernels.cpu.language import intrinsic
from kernels.cpu.linear import COLUMNS, ROWS, VECTORS, packed_block, packed_strip, write_columns
from kernels.cpu.vectors import (
    BF16_PAIRS,
    F32S,
    I16,
    I32,
    I64,
    LANES,
    call,
    dot_pairs,
    load,
    pairs_at,
    prefetch,
    read_i64,
    read_u32,
    repeat,
    repeated_pair,
    store,
    word,
    write_i64,
    write_u32,
    zeros,
)

WORDS = 4
"""Of k, in a group."""
STRIP = 192
"""Bytes of a strip in a group."""
GROUP = VECTORS * STRIP
AHEAD = 16 * GROUP
"""Bytes between what is multiplied and what is asked for from memory: no CPU foresees this stream far enough,
and without asking, eight rows take twice as long."""
FEW, FIRST = 4, 8
"""Rows of the tiles that multiply as they unpack; the second keeps what it unpacks, for further rows."""
_CODES = STRIP - 64

_BYTES = ir.VectorType(ir.IntType(8), 2 * LANES)
_HALVES = ir.VectorType(I16, 2 * LANES)
_CODE, _SIGN_AND_FRACTION = 15 << 7, 0x807F - 0x10000


def _each(value: int) -> Any:
    return ir.Constant(_HALVES, [value] * (2 * LANES))


def _base(builder: Any, base: Any) -> Any:
    """In all lanes, where an exponent begins."""
    nothing, half = ir.Constant(_HALVES, ir.Undefined), builder.trunc(builder.shl(base, word(7)), I16)
    one = builder.insert_element(nothing, half, ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, 2 * LANES), [0] * (2 * LANES)))


def _aligned_codes(builder: Any, codes: Any, place: int) -> Any:
    """Those of one of the four words, where an exponent begins."""
    shift = 7 - 4 * place
    moved = builder.shl(codes, _each(shift)) if shift >= 0 else builder.lshr(codes, _each(-shift))
    return builder.and_(moved, _each(_CODE))


class _Strip:
    """A strip's group. base: in all lanes, where an exponent begins. rare: address of its next rare
    number."""

    def __init__(self, builder: Any, at: Any, base: Any, rare: Any) -> None:
        self._builder, self._at, self._base, self._rare = builder, at, base, rare
        self.codes = load(builder, builder.add(at, word(_CODES)), _HALVES)

    def unpack(self) -> list[Any]:
        """Its words, and the address that it began with: nothing is rare."""
        return [*(self._unpack(self.codes, place)[0] for place in range(WORDS)), self._rare]

    def unpack_rare(self) -> list[Any]:
        """Its words, and the address for the next group."""
        builder, rare, words = self._builder, self._rare, []
        codes = _hidden(builder, self.codes)
        for place in range(WORDS):
            halves, code = self._unpack(codes, place)
            is_rare = builder.icmp_unsigned("==", code, _each(0))
            listed = load(builder, rare, _HALVES)
            name = "llvm.x86.avx512.mask.expand.v32i16"
            words.append(call(builder, name, _HALVES, listed, halves, is_rare))
            count = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
            rare = builder.add(rare, builder.shl(builder.zext(count, I64), word(1)))
        return [*words, rare]

    def _unpack(self, codes: Any, place: int) -> tuple[Any, Any]:
        """32 bfloat16, and the codes of these."""
        builder = self._builder
        rest = load(builder, builder.add(self._at, word(32 * place)), _BYTES)
        code = _aligned_codes(builder, codes, place)
        halves = builder.and_(builder.sext(rest, _HALVES), _each(_SIGN_AND_FRACTION))
        return builder.or_(halves, builder.add(code, self._base)), code


def _hidden(builder: Any, values: Any) -> Any:
    """The same values, of which LLVM does not know that: else it computes what both branches need before
    the branch, for all words at once, and the registers do not suffice."""
    return builder.asm(ir.FunctionType(_HALVES, [_HALVES]), "", "=v,0", [values], False)


def _strips(builder: Any, w: Any, group: Any, base: Any, lists: list[Any]) -> list[_Strip]:
    """Side by side. lists: of each strip the address of its next rare number."""
    at = builder.add(w, builder.mul(group, word(GROUP)))
    for line in range(0, STRIP * len(lists), 64):
        prefetch(builder, builder.add(at, word(AHEAD + line)))
    return [_Strip(builder, builder.add(at, word(STRIP * v)), base, rare) for v, rare in enumerate(lists)]


def _one_is_rare(builder: Any, strips: list[_Strip]) -> Any:
    """Whether a code is 0: then its highest bit is borrowed, and was not set."""
    found = _each(0)
    for strip in strips:
        borrowed = builder.and_(builder.sub(strip.codes, _each(0x1111)), builder.not_(strip.codes))
        found = builder.or_(found, builder.and_(borrowed, _each(0x8888 - 0x10000)))
    bits = builder.bitcast(builder.icmp_unsigned("!=", found, _each(0)), I32)
    return builder.icmp_unsigned("!=", bits, ir.Constant(I32, 0))


def _unpack(builder: Any, strips: list[_Strip], keep: Any = None) -> tuple[list[list[Any]], list[Any]]:
    """Their words, and their lists for the next group. Most groups have no rare number, and take half the
    instructions. keep(v, words): what to do with the words of a strip instead; then none are returned."""
    ways = []
    with builder.if_else(_one_is_rare(builder, strips), likely=False) as branches:
        for branch, rare in zip(branches, (True, False), strict=True):
            with branch:
                values = []
                for v, strip in enumerate(strips):
                    *words, after = strip.unpack_rare() if rare else strip.unpack()
                    if keep is not None:
                        keep(v, words)
                        words = []
                    values += [*words, after]
                ways.append((builder.block, values))
    merged = []
    for pair in zip(*(values for _, values in ways), strict=True):
        phi = builder.phi(pair[0].type)
        for (block, _), value in zip(ways, pair, strict=True):
            phi.add_incoming(value, block)
        merged.append(phi)
    size = len(merged) // len(strips)
    parts = [merged[size * v : size * (v + 1)] for v in range(len(strips))]
    return [part[:-1] for part in parts], [part[-1] for part in parts]


def _unpack_to(builder: Any, strips: list[_Strip], out: Any) -> list[Any]:
    """Words as kernels.linear has them. Returns the lists for the next group."""

    def keep(v: int, words: list[Any]) -> None:
        for place, values in enumerate(words):
            store(builder, values, builder.add(out, word(4 * COLUMNS * place + 4 * LANES * v)))

    return _unpack(builder, strips, keep)[1]


def _lists(builder: Any, rare: Any, vectors: int) -> list[Any]:
    return [load(builder, builder.add(rare, word(8 * v)), I64) for v in range(vectors)]


def _make_unpacker(vectors: int) -> Any:
    """unpack(w, rare, base, groups, out): strips side by side, as kernels.linear has them. rare: address of
    the addresses of their lists."""

    @intrinsic(types.void(*[types.int64] * 5))
    def unpack(builder: Any, w: Any, rare: Any, base: Any, groups: Any, out: Any) -> None:
        bases = _base(builder, base)

        def unpack(group: Any, lists: list[Any]) -> list[Any]:
            to = builder.add(out, builder.mul(group, word(WORDS * 4 * COLUMNS)))
            lists = _unpack_to(builder, _strips(builder, w, group, bases, lists), to)
            return lists

        repeat(builder, groups, _lists(builder, rare, vectors), unpack)

    return unpack


def _make_tile(rows: int, vectors: int, keeps: bool = False) -> Any:
    """tile(x, stride, last, w, rare, base, groups, kept, params, out, out_stride, columns, width): `rows`
    rows of 16 * vectors columns. last: number of the last row that exists; those behind it are computed as
    it is. keeps: a block is left at `kept` as kernels.linear has it."""

    @intrinsic(types.void(*[types.int64] * 13))
    def tile(
        builder: Any,
        x: Any,
        stride: Any,
        last: Any,
        w: Any,
        rare: Any,
        base: Any,
        groups: Any,
        kept: Any,
        params: Any,
        out: Any,
        out_stride: Any,
        columns: Any,
        width: Any,
    ) -> None:
        numbers = [
            builder.select(builder.icmp_signed("<", word(m), last), word(m), last) for m in range(rows)
        ]
        x_rows = [builder.add(x, builder.mul(stride, number)) for number in numbers]
        out_rows = [builder.add(out, builder.mul(out_stride, number)) for number in numbers]
        bases = _base(builder, base)

        def multiply(group: Any, before: list[Any]) -> list[Any]:
            sums = before[:-vectors]
            strips = _strips(builder, w, group, bases, before[-vectors:])
            if keeps:
                to = builder.add(kept, builder.mul(group, word(WORDS * 4 * COLUMNS)))
                lists = _unpack_to(builder, strips, to)
            else:
                unpacked, lists = _unpack(builder, strips)
            x_at = builder.mul(group, word(4 * WORDS))
            for place in range(WORDS):
                if keeps:
                    weights = [
                        pairs_at(builder, builder.add(to, word(4 * COLUMNS * place + 64 * v)))
                        for v in range(vectors)
                    ]
                else:
                    weights = [builder.bitcast(words[place], BF16_PAIRS) for words in unpacked]
                for m, row in enumerate(x_rows):
                    pair = repeated_pair(builder, builder.add(builder.add(row, x_at), word(4 * place)))
                    for v in range(vectors):
                        i = m * vectors + v
                        sums[i] = dot_pairs(builder, sums[i], weights[v], pair)
            return [*sums, *lists]

        begin = [*zeros(rows * vectors), *_lists(builder, rare, vectors)]
        totals = repeat(builder, groups, begin, multiply)
        for v in range(vectors):
            bias = load(builder, builder.add(params, word(64 * v)), F32S)
            results = [builder.fadd(totals[m * vectors + v], bias) for m in range(rows)]
            write_columns(builder, columns, width, v, results, out_rows)

    return tile


_unpack_block, _unpack_strip = _make_unpacker(VECTORS), _make_unpacker(1)
_one_row, _one_row_of_strip, _few_rows = _make_tile(1, VECTORS), _make_tile(1, 1), _make_tile(FEW, VECTORS)
_first_rows = _make_tile(FIRST, VECTORS, keeps=True)


@operation
def compact_linear(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of x, weight, params and result, columns, words, width, address of the weight
    that is needed next, or 0, then 0, address of the addresses of the strips' lists, base, and address of the
    addresses of each thread's scratch memory (words * 192 bytes).

    As kernels.cpu.linear.linear, with a weight of kernels.compact; words is a multiple of 4.
    """
    rows, x, w = read_i64(record + 8), read_i64(record + 16), read_i64(record + 24)
    params, out, columns = read_i64(record + 32), read_i64(record + 40), read_i64(record + 48)
    words, width, following = read_i64(record + 56), read_i64(record + 64), read_i64(record + 72)
    lists, base = read_i64(record + 88), read_i64(record + 96)
    scratch = read_i64(read_i64(record + 104) + 8 * thread)
    strips, groups = (columns + LANES - 1) // LANES, words // WORDS
    row = first // strips * ROWS
    strip, end = first % strips, first % strips + count
    x, out = x + row * words * 4, out + row * columns * width
    rows, stride, out_stride = min(rows - row, ROWS), words * 4, columns * width
    while strip < end:
        block, inner = strip // VECTORS, strip % VECTORS
        w_at = w + block * groups * GROUP + inner * STRIP
        p_at, out_at = params + 64 * strip, out + strip * LANES * width
        list_at, left = lists + 8 * strip, columns - strip * LANES
        soon = w_at + groups * GROUP if strip + VECTORS < strips else following or w_at
        whole = inner == 0 and (strip + VECTORS <= end or end == strips)
        last = rows - 1
        if rows == 1 and whole:
            _one_row(x, stride, last, w_at, list_at, base, groups, 0, p_at, out_at, out_stride, left, width)
        elif rows == 1:
            _one_row_of_strip(
                x, stride, last, w_at, list_at, base, groups, 0, p_at, out_at, out_stride, left, width
            )
        elif rows <= FEW and whole:
            _few_rows(x, stride, last, w_at, list_at, base, groups, 0, p_at, out_at, out_stride, left, width)
        elif whole:
            _first_rows(
                x, stride, last, w_at, list_at, base, groups, scratch, p_at, out_at, out_stride, left, width
            )
            if rows > FIRST:
                packed_block(
                    x + FIRST * stride,
                    stride,
                    scratch,
                    soon,
                    p_at,
                    out_at + FIRST * out_stride,
                    out_stride,
                    words,
                    left,
                    width,
                    0,
                    rows - FIRST,
                )
        else:
            _unpack_strip(w_at, list_at, base, groups, scratch)
            packed_strip(x, stride, scratch, scratch, p_at, out_at, out_stride, words, left, width, 0, rows)
        strip += VECTORS if whole else 1


@operation
def compact_rows(record: int, first: int, count: int, thread: int) -> None:
    """record: rows, addresses of indexes, weight and result, words, address of the addresses of the strips'
    lists, base, address of the addresses of each thread's scratch memory. Rows of a weight as they were.

    Indexes: [rows] int64. Result: [rows, 2 * words] bfloat16.
    """
    indexes, w, out = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    words, lists, base = read_i64(record + 40), read_i64(record + 48), read_i64(record + 56)
    scratch = read_i64(read_i64(record + 64) + 8 * thread)
    groups = words // WORDS
    for row in range(first, first + count):
        index = read_i64(indexes + 8 * row)
        strip = index // LANES
        at = w + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP
        _unpack_strip(at, lists + 8 * strip, base, groups, scratch)
        for k in range(words):
            write_u32(out + 4 * (row * words + k), read_u32(scratch + 4 * COLUMNS * k + 4 * (index % LANES)))


def _codes_of(builder: Any, halves: Any, base: Any) -> tuple[Any, Any]:
    """Of 32 bfloat16, and which of them are rare: their code is 0. base: in all lanes, where an exponent
    begins."""
    exponents = builder.and_(halves, _each(0x7F80))
    first = builder.add(base, _each(1 << 7))
    behind = builder.sub(exponents, first)  # below the first one: a large number
    is_rare = builder.icmp_unsigned(">=", behind, _each(_CODE))
    codes = builder.lshr(builder.sub(exponents, base), _each(7))
    return builder.select(is_rare, _each(0), codes), is_rare


@intrinsic(types.int64(*[types.int64] * 3))
def _count_rare(builder: Any, pairs: Any, words: Any, base: Any) -> Any:
    """Of a strip of a packed weight."""
    bases = _base(builder, base)

    def count(k: Any, before: list[Any]) -> list[Any]:
        halves = load(builder, builder.add(pairs, builder.mul(k, word(4 * COLUMNS))), _HALVES)
        _, is_rare = _codes_of(builder, halves, bases)
        found = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
        return [builder.add(before[0], builder.zext(found, I64))]

    return repeat(builder, words, [word(0)], count)[0]


@intrinsic(types.void(*[types.int64] * 5))
def _make_compact(builder: Any, pairs: Any, w: Any, rare: Any, groups: Any, base: Any) -> None:
    """A strip of a packed weight becomes one of a compact weight. rare: address of its list."""
    bases = _base(builder, base)

    def put(group: Any, values: list[Any]) -> list[Any]:
        (rare,), to = values, builder.add(w, builder.mul(group, word(GROUP)))
        at, together = builder.add(pairs, builder.mul(group, word(WORDS * 4 * COLUMNS))), _each(0)
        for place in range(WORDS):
            halves = load(builder, builder.add(at, word(4 * COLUMNS * place)), _HALVES)
            codes, is_rare = _codes_of(builder, halves, bases)
            together = builder.or_(together, builder.shl(codes, _each(4 * place)))
            sign = builder.and_(builder.lshr(halves, _each(8)), _each(0x80))
            rest = builder.or_(sign, builder.and_(halves, _each(0x7F)))
            store(builder, builder.trunc(rest, _BYTES), builder.add(to, word(32 * place)))
            rare = _list(builder, halves, is_rare, rare)
        store(builder, together, builder.add(to, word(_CODES)))
        return [rare]

    repeat(builder, groups, [rare], put)


def _list(builder: Any, halves: Any, chosen: Any, to: Any) -> Any:
    """The chosen ones of a vector, one after the other. Returns where the next ones are to be."""
    bits = builder.bitcast(chosen, I32)
    with builder.if_then(builder.icmp_unsigned("!=", bits, ir.Constant(I32, 0)), likely=False):
        pointer = builder.inttoptr(to, I16.as_pointer())
        call(builder, "llvm.masked.compressstore.v32i16", ir.VoidType(), halves, pointer, chosen)
    count = builder.zext(call(builder, "llvm.ctpop.i32", I32, bits), I64)
    return builder.add(to, builder.shl(count, word(1)))


def _packed_strip_at(pairs: int, strip: int, words: int) -> int:
    """Address, in a weight of kernels.linear."""
    address: int = pairs + strip // VECTORS * words * 4 * COLUMNS + strip % VECTORS * 4 * LANES
    return address


@operation
def count_rare(record: int, first: int, count: int, thread: int) -> None:
    """record: strips, addresses of a packed weight (kernels.linear), of the compact one and of numbers,
    words, base. The numbers become: how many halves of each strip are rare, [strips] int64."""
    pairs, numbers = read_i64(record + 16), read_i64(record + 32)
    words, base = read_i64(record + 40), read_i64(record + 48)
    for strip in range(first, first + count):
        write_i64(numbers + 8 * strip, _count_rare(_packed_strip_at(pairs, strip, words), words, base))


@operation
def make_compact(record: int, first: int, count: int, thread: int) -> None:
    """record: as count_rare has it; the numbers are the addresses of the strips' lists, which are filled."""
    pairs, w, lists = read_i64(record + 16), read_i64(record + 24), read_i64(record + 32)
    words, base = read_i64(record + 40), read_i64(record + 48)
    groups = words // WORDS
    for strip in range(first, first + count):
        to = w + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP
        at = _packed_strip_at(pairs, strip, words)
        _make_compact(at, to, read_i64(lists + 8 * strip), groups, base)
