"""Makes weights of kernels.compact from packed ones (kernels.linear), strip by strip."""

from typing import Any

from llvmlite import ir

from kernels.cpu import types
from kernels.cpu.compiler import operation
from kernels.cpu.language import intrinsic
from kernels.cpu.shares import COLUMNS, VECTORS
from kernels.cpu.unpacking import CODE, CODES, GROUP, HALF_BYTES, HALVES, STRIP, WORDS, base_in_each, each
from kernels.cpu.vectors import I16, I32, I64, LANES, call, load, read_i64, repeat, store, word, write_i64


def _codes_of(builder: Any, halves: Any, base: Any) -> tuple[Any, Any]:
    """Of 32 bfloat16, and which of them are rare: their code is 0. base: in all lanes, where an exponent
    begins."""
    exponents = builder.and_(halves, each(0x7F80))
    first = builder.add(base, each(1 << 7))
    behind = builder.sub(exponents, first)  # below the first one: a large number
    is_rare = builder.icmp_unsigned(">=", behind, each(CODE))
    codes = builder.lshr(builder.sub(exponents, base), each(7))
    return builder.select(is_rare, each(0), codes), is_rare


@intrinsic(types.int64(*[types.int64] * 3))
def _count_rare(builder: Any, pairs: Any, words: Any, base: Any) -> Any:
    """Of a strip of a packed weight."""
    bases = base_in_each(builder, base)

    def count(k: Any, before: list[Any]) -> list[Any]:
        halves = load(builder, builder.add(pairs, builder.mul(k, word(4 * COLUMNS))), HALVES)
        _, is_rare = _codes_of(builder, halves, bases)
        found = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
        return [builder.add(before[0], builder.zext(found, I64))]

    return repeat(builder, words, [word(0)], count)[0]


@intrinsic(types.void(*[types.int64] * 5))
def _make_compact(builder: Any, pairs: Any, w: Any, rare: Any, groups: Any, base: Any) -> None:
    """A strip of a packed weight becomes one of a compact weight. rare: address of its list."""
    bases = base_in_each(builder, base)

    def put(group: Any, values: list[Any]) -> list[Any]:
        (rare,), to = values, builder.add(w, builder.mul(group, word(GROUP)))
        at, together = builder.add(pairs, builder.mul(group, word(WORDS * 4 * COLUMNS))), each(0)
        for place in range(WORDS):
            halves = load(builder, builder.add(at, word(4 * COLUMNS * place)), HALVES)
            codes, is_rare = _codes_of(builder, halves, bases)
            together = builder.or_(together, builder.shl(codes, each(4 * place)))
            sign = builder.and_(builder.lshr(halves, each(8)), each(0x80))
            rest = builder.or_(sign, builder.and_(halves, each(0x7F)))
            store(builder, builder.trunc(rest, HALF_BYTES), builder.add(to, word(32 * place)))
            rare = _list(builder, halves, is_rare, rare)
        store(builder, together, builder.add(to, word(CODES)))
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
