"""Each opcode of one thread against Python's integers, exact rationals and torch's conversions, at the edges
of its types."""

import math
import operator
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from ptx_emulator.arithmetic import find
from ptx_emulator.parser import PtxError
from ptx_emulator.threads import DTYPES

NAN, INF = math.nan, math.inf
FLOATS = [
    0.0,
    -0.0,
    1.0,
    -1.5,
    3.0,
    0.1,
    -1e-3,
    65504.0,
    1e30,
    -1e38,
    2.0**-149,
    -(2.0**-130),
    INF,
    -INF,
    NAN,
]


def bits_of(kind: str) -> int:
    """The width of a PTX type."""
    return 8 * np.dtype(DTYPES[kind]).itemsize


def wrapped(value: int, kind: str) -> int:
    """An integer as its lowest bits mean it in a PTX type."""
    bits = bits_of(kind)
    value &= (1 << bits) - 1
    return value - (1 << bits) if kind[0] == "s" and value >> (bits - 1) else value


def edges(kind: str) -> list[int]:
    """Integers at which a type's arithmetic changes."""
    top = 1 << (bits_of(kind) - 1)
    return sorted(
        {wrapped(n, kind) for n in (0, 1, 2, 3, 7, 100, -1, -3, -7, top - 1, top, top + 1, top // 2 + 5)}
    )


def run(opcode: str, *columns: list[Any]) -> np.ndarray:
    """Applies an opcode to columns of operands."""
    operation = find(tuple(opcode.split(".")))
    kinds = [operation.sources[min(n, len(operation.sources) - 1)] for n in range(len(columns))]
    arrays = [np.array(column, DTYPES[kind]) for column, kind in zip(columns, kinds, strict=True)]
    found = operation.compute(*arrays)
    assert found.dtype == np.dtype(DTYPES[operation.result]), opcode
    return found


def quotient(a: int, b: int) -> int:
    """Toward zero; all ones where the divisor is zero."""
    return -1 if b == 0 else (abs(a) // abs(b)) * (1 if (a < 0) == (b < 0) else -1)


INTEGERS: list[tuple[str, Callable[..., int]]] = [
    ("add.{}", operator.add),
    ("sub.{}", operator.sub),
    ("min.{}", min),
    ("max.{}", max),
    ("div.{}", quotient),
    ("rem.{}", lambda a, b: a - quotient(a, b) * b),
    ("mul.lo.{}", operator.mul),
    ("neg.{}", operator.neg),
    ("abs.{}", abs),
]


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
@pytest.mark.parametrize(("opcode", "reference"), INTEGERS, ids=[opcode for opcode, _ in INTEGERS])
def test_integers(opcode: str, reference: Callable[..., int], kind: str):
    one = opcode in ("neg.{}", "abs.{}")
    rows = list(product(edges(kind), repeat=1 if one else 2))
    found = run(opcode.format(kind), *map(list, zip(*rows, strict=True)))
    assert found.tolist() == [wrapped(reference(*row), kind) for row in rows]


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_upper_and_wide_products(kind: str):
    bits, rows = bits_of(kind), list(product(edges(kind), repeat=2))
    columns = [list(column) for column in zip(*rows, strict=True)]
    high = run(f"mul.hi.{kind}", *columns)
    assert high.tolist() == [wrapped(a * b >> bits, kind) for a, b in rows]
    added = [wrapped(5 * a, kind) for a, _ in rows]
    low = run(f"mad.lo.{kind}", *columns, added)
    assert low.tolist() == [wrapped(a * b + c, kind) for (a, b), c in zip(rows, added, strict=True)]
    if bits < 64:
        assert run(f"mul.wide.{kind}", *columns).tolist() == [a * b for a, b in rows]
        twice = f"{kind[0]}{2 * bits}"
        far = [edges(twice)[n % len(edges(twice))] for n in range(len(rows))]
        sums = [wrapped(a * b + c, twice) for (a, b), c in zip(rows, far, strict=True)]
        assert run(f"mad.wide.{kind}", *columns, far).tolist() == sums


@pytest.mark.parametrize("kind", ["b16", "s32", "u32", "b32", "s64", "u64", "b64", "s16", "u16"])
def test_shifts_beyond_the_width_leave_the_sign_or_nothing(kind: str):
    bits = bits_of(kind)
    rows = list(product(edges(kind), [0, 1, bits - 1, bits, bits + 1, 255, 1 << 31]))
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert run(f"shl.{kind}", *columns).tolist() == [wrapped(a << min(n, 64), kind) for a, n in rows]
    assert run(f"shr.{kind}", *columns).tolist() == [wrapped(a >> min(n, 64), kind) for a, n in rows]


def field(a: int, start: int, length: int, kind: str) -> int:
    """bfe, bit by bit, as PTX's manual writes it."""
    top = bits_of(kind) - 1
    sign = 0 if kind[0] == "u" or length == 0 else (a >> min(start + length - 1, top)) & 1
    taken = [(a >> (start + i)) & 1 if i < length and start + i <= top else sign for i in range(top + 1)]
    return wrapped(sum(bit << i for i, bit in enumerate(taken)), kind)


@pytest.mark.parametrize("kind", ["u32", "s32", "u64", "s64"])
def test_fields_of_bits(kind: str):
    places = [0, 1, 3, 28, 31, 32, 33, 63, 64, 255]
    rows = list(product([*edges(kind), 0x5A5A5A5A], places, places))
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert run(f"bfe.{kind}", *columns).tolist() == [field(*row, kind) for row in rows]


def test_only_eight_bits_of_a_place_count():
    assert run("bfe.u32", [0xF0], [256 + 4], [512 + 2]).tolist() == [3]


@pytest.mark.parametrize("kind", ["b16", "b32", "b64"])
def test_logic(kind: str):
    rows = list(product(edges(kind), repeat=2))
    a, b = ([row[n] for row in rows] for n in (0, 1))
    for name, reference in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        assert run(f"{name}.{kind}", a, b).tolist() == [reference(*row) for row in rows]
    assert run(f"not.{kind}", a).tolist() == [wrapped(~x, kind) for x in a]
    if kind != "b16":
        assert run(f"popc.{kind}", a).tolist() == [x.bit_count() for x in a]
    assert run(f"selp.{kind}", a, b, [x > y for x, y in rows]).tolist() == list(map(max, rows))
    truth = [[True, True, False, False], [True, False, True, False]]
    assert run("xor.pred", *truth).tolist() == [False, True, True, False]
    assert run("not.pred", truth[0]).tolist() == [False, False, True, True]


def test_bytes_are_permuted_by_fours_of_bits():
    """The eight bytes of b:a, or, where the selector's upper bit is set, a byte of their sign."""
    a, b = 0x80C37F01, 0xFE10FF20
    source = a.to_bytes(4, "little") + b.to_bytes(4, "little")
    selectors = [0x3210, 0x7654, 0x0123, 0x4567, 0x8888, 0xBA98, 0xFEDC, 0x5140, 0x91B3, 0xFFFF0000]
    found = run("prmt.b32", [a] * 10, [b] * 10, selectors)
    for selector, got in zip(selectors, found.tolist(), strict=True):
        wanted = 0
        for n in range(4):
            choice = (selector >> (4 * n)) & 15
            byte = source[choice & 7]
            wanted |= ((255 if byte & 128 else 0) if choice & 8 else byte) << (8 * n)
        assert got == wanted, hex(selector)


TESTS = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
}
UNSIGNED_TESTS = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}


@pytest.mark.parametrize("kind", ["s16", "u16", "s32", "u32", "s64", "u64"])
def test_integers_are_compared(kind: str):
    rows = list(product(edges(kind), repeat=2))
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = {**{name: name for name in TESTS}, **(UNSIGNED_TESTS if kind[0] == "u" else {})}
    for name, test in names.items():
        found = run(f"setp.{name}.{kind}", *columns)
        assert found.tolist() == [TESTS[test](*row) for row in rows], name


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_floats_are_compared(kind: str):
    rows = list(product([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN], repeat=2))
    columns = [list(column) for column in zip(*rows, strict=True)]
    unordered = [math.isnan(a) or math.isnan(b) for a, b in rows]
    for name, test in TESTS.items():
        plain = [test(*row) and not nan for row, nan in zip(rows, unordered, strict=True)]
        assert run(f"setp.{name}.{kind}", *columns).tolist() == plain, name
        either = [test(*row) or nan for row, nan in zip(rows, unordered, strict=True)]
        assert run(f"setp.{name}u.{kind}", *columns).tolist() == either, name
    assert run(f"setp.nan.{kind}", *columns).tolist() == unordered
    assert run(f"setp.num.{kind}", *columns).tolist() == [not nan for nan in unordered]


def same(found: np.ndarray, expected: np.ndarray) -> bool:
    """Whether two arrays have equal bits, where they are not both NaN."""
    bits, nan = f"u{found.itemsize}", np.isnan(found) & np.isnan(expected)
    return bool(((found.view(bits) == expected.view(bits)) | nan).all())


ARITHMETIC: list[tuple[str, int, Callable[..., Any]]] = [
    ("add.rn.{}", 2, np.add),
    ("sub.rn.{}", 2, np.subtract),
    ("mul.rn.{}", 2, np.multiply),
    ("div.rn.{}", 2, np.divide),
    ("sqrt.rn.{}", 1, np.sqrt),
    ("neg.{}", 1, np.negative),
    ("abs.{}", 1, np.fabs),
]


@pytest.mark.parametrize("kind", ["f16", "f32"])
@pytest.mark.parametrize(("opcode", "count", "exact"), ARITHMETIC, ids=[row[0] for row in ARITHMETIC])
def test_floats_are_rounded_once(opcode: str, count: int, exact: Callable[..., Any], kind: str):
    """float64 holds what these give of shorter operands well enough for one rounding."""
    with np.errstate(all="ignore"):
        edge = np.array(FLOATS).astype(DTYPES[kind])
        rows = [grid.reshape(-1) for grid in np.meshgrid(*[edge] * count)]
        expected = exact(*(row.astype(np.float64) for row in rows)).astype(DTYPES[kind])
    assert same(run(opcode.format(kind), *rows), expected)


@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_the_larger_and_the_smaller(kind: str):
    """A number and NaN give the number, unless .NaN is asked for; +0 is more than -0."""
    pairs = list(product([0.0, -0.0, 1.0, -2.0, INF, -INF, NAN], repeat=2))

    def by_order(a: float, b: float, largest: bool) -> float:
        if math.isnan(a) or math.isnan(b):
            return b if math.isnan(a) else a
        pick = max if largest else min
        return pick((a, b), key=lambda x: (x, math.copysign(1, x)))

    columns = [list(column) for column in zip(*pairs, strict=True)]
    for name in ("max", "min"):
        expected = np.array([by_order(a, b, name == "max") for a, b in pairs]).astype(DTYPES[kind])
        assert same(run(f"{name}.{kind}", *columns), expected)
        spread = np.where(np.isnan(columns[0]) | np.isnan(columns[1]), NAN, expected).astype(DTYPES[kind])
        assert same(run(f"{name}.NaN.{kind}", *columns), spread)
        third = run(f"{name}.{kind}", *columns, [0.5] * len(pairs))
        nested = [by_order(float(x), 0.5, name == "max") for x in expected]
        assert same(third, np.array(nested).astype(DTYPES[kind]))


def test_relu_after_the_larger_and_the_smaller():
    rows = list(product(edges("s32"), repeat=2))
    columns = [list(column) for column in zip(*rows, strict=True)]
    assert run("max.relu.s32", *columns).tolist() == [max(a, b, 0) for a, b in rows]
    assert run("min.relu.s32", *columns).tolist() == [max(min(a, b), 0) for a, b in rows]


def test_subnormals_are_flushed_where_it_is_said():
    """Operands before, and results after; of their sign."""
    tiny, small = 2.0**-130, 2.0**-126
    assert run("add.ftz.f32", [small, small], [tiny, -tiny]).tolist() == [small, small]
    assert run("add.f32", [small], [tiny]).tolist() == [small + tiny]
    assert same(run("mul.rn.ftz.f32", [small, -small], [0.5, 0.5]), np.array([0, -0.0], np.float32))
    assert same(run("neg.ftz.f32", [tiny]), np.array([-0.0], np.float32))
    assert run("mul.rn.f32", [small], [0.5]).tolist() == [small / 2]
    assert same(run("fma.rn.ftz.f32", [small], [-0.5], [0.0]), np.array([-0.0], np.float32))


APPROXIMATE: list[tuple[str, Callable[[float], float], list[float]]] = [
    ("ex2.approx.ftz.f32", lambda x: 2.0**x, [-20.5, -1, 0, 0.3, 1, 10.7, 100]),
    ("lg2.approx.f32", math.log2, [2.0**-20, 0.3, 1, 3, 1e30]),
    ("rsqrt.approx.ftz.f32", lambda x: x**-0.5, [2.0**-100, 0.3, 1, 2, 1e30]),
    ("sqrt.approx.f32", math.sqrt, [0, 0.3, 1, 2, 1e30]),
    ("sin.approx.f32", math.sin, [-3, 0, 0.5, 2]),
    ("cos.approx.f32", math.cos, [-3, 0, 0.5, 2]),
    ("div.full.f32", lambda x: x / 3.0, [0.7, 1, 1e30]),
]


@pytest.mark.parametrize(("opcode", "exact", "values"), APPROXIMATE, ids=[row[0] for row in APPROXIMATE])
def test_functions_are_near_the_exact_ones(opcode: str, exact: Callable[[float], float], values: list[float]):
    rounded = np.array(values, np.float32)
    columns = [rounded] if not opcode.startswith("div") else [rounded, [3.0] * len(values)]
    found = run(opcode, *columns)
    expected = np.array([exact(float(x)) for x in rounded])
    assert (np.abs(found - expected) <= 2.0**-22 * np.abs(expected)).all()


def test_functions_at_the_ends():
    assert same(run("ex2.approx.ftz.f32", [-INF, -127.5, 128, INF]), np.array([0, 0, INF, INF], np.float32))
    assert same(run("lg2.approx.f32", [0, -1, INF]), np.array([-INF, NAN, INF], np.float32))
    assert same(run("rsqrt.approx.f32", [0, INF, -1]), np.array([INF, 0, NAN], np.float32))


def test_a_reciprocal_of_double_precision_has_its_upper_half():
    values = np.array([3.0, -7.0, 1e-300, 2.0])
    found = run("rcp.approx.ftz.f64", values)
    assert (found.view(np.uint64) & np.uint64(0xFFFFFFFF) == 0).all()
    assert (np.abs(found * values - 1) < 2.0**-20).all() and found[3] == 0.5


def test_fused_products():
    """Once rounded in both precisions; of packed and mixed operands too."""
    x = 1 + 2.0**-12
    left = float(Fraction(x) * Fraction(x) - 1)
    assert run("fma.rn.f32", [x], [x], [-1.0]).tolist() == [left]
    y = 1 + 2.0**-30
    assert run("fma.rn.f64", [y], [y], [-1.0]).tolist() == [2.0**-29 + 2.0**-60]
    halves = torch.tensor([1.5, -2.0, 100.0], dtype=torch.bfloat16)
    bits, wide = halves.view(torch.uint16).numpy(), halves.float().numpy()
    third = np.array([0.1, 1e-3, -7], np.float32)
    with_bits = run("fma.rn.f32.bf16", bits, bits, third)
    assert (with_bits == (wide.astype(np.float64) ** 2 + third).astype(np.float32)).all()
    assert (run("add.rn.f32.bf16", bits, third) == wide + third).all()
    assert (run("sub.rn.f32.f16", wide, third) == wide - third).all()


@pytest.mark.parametrize("name", ["add", "sub", "mul", "fma", "max", "min"])
def test_packed_floats(name: str):
    """Each half as alone, the lower one first: of two float32, and of two bfloat16, rounded once."""
    rng = np.random.default_rng(4)
    columns = rng.standard_normal((3 if name == "fma" else 2, 8)).astype(np.float32)
    middle = ".rn" if name not in ("max", "min") else ""
    alone = run(f"{name}{middle}.f32", *columns)
    if middle:
        pairs = run(f"{name}.rn.f32x2", *(column.view(np.uint64) for column in columns))
        assert (pairs.view(np.float32) == alone).all()
    halves = [torch.from_numpy(column).bfloat16() for column in columns]
    expected = torch.from_numpy(
        run(f"{name}{middle}.f32", *(half.float().numpy() for half in halves))
    ).bfloat16()
    found = run(
        f"{name}{middle}.bf16x2", *(half.view(torch.uint16).numpy().view(np.uint32) for half in halves)
    )
    assert (found.view(np.uint16) == expected.view(torch.uint16).numpy()).all()


@pytest.mark.parametrize(("name", "reference"), [("add", operator.add), ("max", max), ("min", min)])
def test_packed_integers(name: str, reference: Callable[[int, int], int]):
    rows = list(product(edges("s16"), repeat=2))[:168]
    packed = [np.array([row[n] for row in rows], np.int16).view(np.uint32) for n in (0, 1)]
    found = run(f"{name}.s16x2", *packed).view(np.int16)
    assert found.tolist() == [wrapped(reference(*row), "s16") for row in rows]


@pytest.mark.parametrize("to", ["s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"])
def test_integers_are_extended_and_cut(to: str):
    for source in ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64"):
        found = run(f"cvt.{to}.{source}", edges(source))
        assert found.tolist() == [wrapped(x, to) for x in edges(source)], source


def nearest(value: Fraction, digits: int) -> float:
    """Rounded to so many binary digits, ties to even."""
    if not value:
        return 0.0
    unit = Fraction(2) ** (math.floor(math.log2(abs(value))) + 1 - digits)
    return float(round(value / unit) * unit)


@pytest.mark.parametrize("source", ["s32", "u32", "s64", "u64"])
def test_integers_become_floats(source: str):
    values = [*edges(source), (1 << 24) + 1, (1 << 24) + 3, (1 << 25) + 2]
    assert run(f"cvt.rn.f32.{source}", values).tolist() == [nearest(Fraction(x), 24) for x in values]
    assert run(f"cvt.rn.f64.{source}", values).tolist() == [float(x) for x in values]


WHOLE = {"rni": round, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


@pytest.mark.parametrize("mode", WHOLE)
def test_floats_become_integers(mode: str):
    """NaN is 0, and what is too large or too small the last one there is."""
    values = [0.0, -0.0, 0.5, 1.5, 2.5, -0.5, -1.5, 3.7, -3.7, 1e9, -1e9, 1e30, -1e30, 2.0**31, 2.0**63]
    for to in ("s8", "u8", "s32", "u32", "s64", "u64"):
        limits = np.iinfo(DTYPES[to])
        for source in ("f32", "f64"):
            rounded = [float(DTYPES[source](x)) for x in values]
            expected = [min(max(WHOLE[mode](x), limits.min), limits.max) for x in rounded]
            found = run(f"cvt.{mode}.{to}.{source}", [*rounded, NAN, INF, -INF])
            assert found.tolist() == [*expected, 0, limits.max, limits.min], (to, source)
    floats = run(f"cvt.{mode}.f32.f32", values[:9])
    assert same(floats, np.array([math.copysign(WHOLE[mode](x), x) for x in values[:9]], np.float32))


TORCH = {"f16": torch.float16, "f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}


@pytest.mark.parametrize(("to", "source"), [pair for pair in product(TORCH, TORCH) if pair[0] != pair[1]])
def test_floats_are_converted_as_by_torch(to: str, source: str):
    """Also those that are in the middle of two, too large, or subnormal."""
    rng = np.random.default_rng(6)
    middles = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-8, 1 + 3 * 2.0**-8, 65519.0, 65520.0, 3.39e38, 1e-7]
    values = torch.tensor([*FLOATS[:-1], *middles, *rng.standard_normal(100)], dtype=torch.float64)
    given = values.to(TORCH[source])
    if to == "bf16" and source == "f64":  # torch rounds twice, as the emulator does
        given = given.float().double()
    expected = given.to(TORCH[to])
    operand = given.view(torch.uint16).numpy() if source == "bf16" else given.numpy()
    found = run(f"cvt.{'rn.' if bits_of(to) < bits_of(source) or to == 'bf16' else ''}{to}.{source}", operand)
    if to == "bf16":
        assert (found == expected.view(torch.uint16).numpy()).all()
    else:
        assert same(found, expected.numpy())


def test_a_half_toward_zero():
    values = [1 + 2.0**-10 - 2.0**-20, -(1 + 2.0**-10 - 2.0**-20), 70000.0, -70000.0, 2.0**-25, INF, 1.0]
    expected = [1.0, -1.0, 65504.0, -65504.0, 0.0, INF, 1.0]
    assert run("cvt.rz.f16.f32", values).tolist() == expected


def test_two_values_become_one_register():
    """The first operand is the upper half; e4m3 saturates, and both of a pair widen in their order."""
    first, second = [1.5, -449.0, 1e-9, 0.3], [-0.0, 1000.0, NAN, 17.0]
    for to, dtype in (("bf16x2", torch.bfloat16), ("f16x2", torch.float16)):
        found = run(f"cvt.rn.{to}.f32", first, second)
        halves = torch.tensor([second, first]).to(dtype).view(torch.uint16).numpy().astype(np.uint32)
        number = ~np.isnan(second)  # a NaN's bits are torch's own
        assert (found == halves[0] | halves[1] << 16)[number].all(), to
    found = run("cvt.rn.satfinite.e4m3x2.f32", first, second)
    clipped = torch.tensor([second, first]).clip(-448, 448)
    codes = clipped.to(torch.float8_e4m3fn).view(torch.uint8).numpy().astype(np.uint16)
    assert (found == codes[0] | codes[1] << 8).all()
    every = np.arange(1 << 16, dtype=np.uint16)
    wide = run("cvt.rn.f16x2.e4m3x2", every).view(np.float16)
    assert same(wide, torch.from_numpy(every).view(torch.float8_e4m3fn).half().numpy())
    both = torch.tensor([0.3, 1000.0]).half().numpy().view(np.uint32)
    expected = torch.tensor([0.3, 448.0]).half().to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    assert run("cvt.rn.satfinite.e4m3x2.f16x2", both).view(np.uint8).tolist() == expected.tolist()


@pytest.mark.parametrize(
    "opcode",
    [
        "add.sat.s32",
        "add.rz.f32",
        "add.cc.u32",
        "add.bf16",
        "max.bf16x4",
        "mul.f8x2",
        "mul.rz.f32",
        "mul24.lo.s32",
        "mad.lo.sat.s32",
        "max.relu.u32",
        "fma.rn.bf16",
        "fma.rn.f16",
        "fma.rm.f32x2",
        "mul.rn.f32.bf16",
        "ex2.s32",
        "prmt.b32.f4e",
        "bfe.u16",
        "setp.lt.and.f32",
        "setp.lt.ftz.f32",
        "setp.lx.s32",
        "setp.lt.bf16",
        "cvt.sat.f32.f32",
        "cvt.sat.s8.s32",
        "cvt.rz.f32.s32",
        "cvt.s32.f32",
        "cvt.rn.s32.f32",
        "cvt.rn.relu.bf16x2.f32",
        "cvt.rn.tf32.f32",
        "cvt.f32",
        "lop3.b32",
    ],
)
def test_what_is_not_known_is_refused(opcode: str):
    """A modifier that is overlooked would be a wrong result in silence."""
    with pytest.raises(PtxError, match="does not know " + opcode):
        find(tuple(opcode.split(".")))
