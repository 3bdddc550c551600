"""Makes weights of kernels.cpu.matmul.packed12 from packed ones (kernels.cpu.matmul.packed), strip by
strip."""

from typing import Any

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import operation
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.sets.avx512_vbmi import HALVES, packed_bytes
from kernels.cpu.isa.vectors import I16, I32, I64, LANES, call, load, read_i64, repeat, store, word, write_i64
from kernels.cpu.matmul.records import Pack12Record
from kernels.cpu.matmul.unpack12 import CODES, GROUP, NUM_CODES, STRIP_BYTES, WORDS, each
from kernels.cpu.runtime.work_split import COLUMNS, VECTORS


def _base_in_each(builder: Any, base: Any) -> Any:
    """HALVES."""
    nothing = ir.Constant(HALVES, ir.Undefined)
    one = builder.insert_element(nothing, builder.trunc(base, I16), ir.Constant(I32, 0))
    return builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(I32, 2 * LANES), [0] * (2 * LANES)))


def _codes_of(builder: Any, halves: Any, base: Any) -> tuple[Any, Any]:
    """Of 32 bfloat16, and which of them are rare: three bits of their code are 0. base: in all lanes."""
    codes = builder.sub(builder.and_(builder.lshr(halves, each(8)), each(0x7F)), base)
    # Below the first one: a large number.
    is_rare = builder.icmp_unsigned(">=", builder.sub(codes, each(1)), each(NUM_CODES))
    signs = builder.and_(builder.lshr(halves, each(12)), each(8))
    return builder.or_(builder.select(is_rare, each(0), codes), signs), is_rare


@intrinsic(types.int64(*[types.int64] * 3))
def _count_rare(builder: Any, pairs: Any, words: Any, base: Any) -> Any:
    """Of a strip of a packed weight."""
    bases = _base_in_each(builder, base)

    def count(k: Any, before: list[Any]) -> list[Any]:
        halves = load(builder, builder.add(pairs, builder.mul(k, word(4 * COLUMNS))), HALVES)
        _, is_rare = _codes_of(builder, halves, bases)
        found = call(builder, "llvm.ctpop.i32", I32, builder.bitcast(is_rare, I32))
        return [builder.add(before[0], builder.zext(found, I64))]

    return repeat(builder, words, [word(0)], count)[0]


@intrinsic(types.void(*[types.int64] * 5))
def _make_compact(builder: Any, pairs: Any, w: Any, rare: Any, groups: Any, base: Any) -> None:
    """A strip of a packed weight becomes one of a compact weight. rare: address of its list."""
    bases = _base_in_each(builder, base)

    def put(group: Any, values: list[Any]) -> list[Any]:
        (rare,), to = values, builder.add(w, builder.mul(group, word(GROUP)))
        at = builder.add(pairs, builder.mul(group, word(WORDS * 4 * COLUMNS)))
        lower, codes = [], []
        for place in range(WORDS):
            halves = load(builder, builder.add(at, word(4 * COLUMNS * place)), HALVES)
            code, is_rare = _codes_of(builder, halves, bases)
            lower.append(builder.and_(halves, each(0xFF)))
            codes.append(code)
            rare = _list(builder, halves, is_rare, rare)
        store(builder, packed_bytes(builder, *lower[:2]), to)
        store(builder, packed_bytes(builder, *lower[2:]), builder.add(to, word(64)))
        both = [builder.bitcast(packed_bytes(builder, *codes[i : i + 2]), HALVES) for i in (0, 2)]
        both[1] = builder.shl(both[1], each(4))
        store(builder, builder.or_(*both), builder.add(to, word(CODES)))
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
    """Address, in a weight of kernels.cpu.matmul.packed."""
    return pairs + strip // VECTORS * words * 4 * COLUMNS + strip % VECTORS * 4 * LANES


@operation
def count_rare(record: Pack12Record, first: int, count: int, thread: int) -> None:
    """Writes to the numbers how many halves of each strip are rare."""
    words, base = record.words, record.base
    for strip in range(first, first + count):
        at = _packed_strip_at(record.pairs, strip, words)
        write_i64(record.numbers + 8 * strip, _count_rare(at, words, base))


@operation
def make_compact(record: Pack12Record, first: int, count: int, thread: int) -> None:
    """Packs strips. The numbers are the addresses of the strips' lists, which are filled."""
    words, base, groups = record.words, record.base, record.words // WORDS
    for strip in range(first, first + count):
        to = record.weight + strip // VECTORS * groups * GROUP + strip % VECTORS * STRIP_BYTES
        at = _packed_strip_at(record.pairs, strip, words)
        _make_compact(at, to, read_i64(record.numbers + 8 * strip), groups, base)
