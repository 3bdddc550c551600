"""Kernels' language: what is compiled does what Python does with the same function."""

import ctypes
import math
import random
from collections.abc import Callable
from math import log
from typing import Any

import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.arithmetic import CompileError  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.language import Static, float32, unroll  # noqa: E402
from kernels.cpu.compiler.lowering import lower  # noqa: E402
from kernels.cpu.compiler.records import Address, Record, f32, f64, i64, record, u32  # noqa: E402
from kernels.cpu.compiler.vectors import f32x16  # noqa: E402
from kernels.cpu.isa.simd import fma, load_bf16, load_i32, select, store_f32  # noqa: E402

LIMIT, SCALE = 7, 2.0**-3


def integers(x: int, y: int) -> int:
    """Rounding of both divisions, by powers of two and by others; shifts; bits."""
    if y == 0:
        y = LIMIT
    total = x // y + 3 * (x % y) - x // 16 + x % 16 + (x // -5) - x % -5
    return (total ^ (x >> 3)) + ((y & 0xFF) << 2) - (~x | y) + abs(x) + min(x, y, 3) - max(x, -y)


def floats(x: float, y: float) -> float:
    """Narrow ones stay narrow among themselves only."""
    narrow = float32(float32(x) * float32(y))
    wide = narrow + y * SCALE - x / 3 if x < y else -abs(y) + int(x > 0)
    narrow = float32(min(wide, 1e30))
    return max(narrow, wide, x) + log(2 + abs(y)) + float(1 if x == y else 2)


def loops(n: int, least: int) -> int:
    """break, continue, a name that changes within, loops that never run, and what they leave behind."""
    total, last = 0, -1
    for i in range(n, 0, -2):
        if i % 5 == 3:
            continue
        if total > 1000:
            break
        last = i
        i += 100
        total += i
        while total % 3 != 0 and total > least:
            total -= 1
    for j in range(3, n, LIMIT):
        total += j
    else_ = 0
    for _ in range(5, 2):
        else_ = 1
    return total * 10 + last + else_


def divides(x: int, y: int) -> bool:
    """Were the second part evaluated anyway, the process would end."""
    return y != 0 and x % y == 0


def either(x: int, y: int) -> int:
    """Numbers for truth; a chain of comparisons."""
    first = x or y
    second = (x and y) + (1 if not x else 2)
    return first * 3 + second if -3 < x <= y < LIMIT else int(divides(x, y)) - int(x != y or divides(y, x))


def halves(x: int) -> tuple[int, float]:
    """Two results."""
    low, high = x, x + 1
    low, high = high, low
    return low // 2, high / 2


def results(x: int, y: int) -> float:
    """Of the same function, twice."""
    whole, half = halves(x)
    if half > 3:
        return whole
    elif y > 2:
        pass
    else:
        whole = halves(y)[0]
    return half + whole


def cases(parameters: int, kind: type) -> list[tuple[Any, ...]]:
    """Small numbers, so that all of their relations occur, and large ones."""
    numbers = random.Random(0)
    ranges = [3, 20, 10**6]
    return [
        tuple(kind(numbers.randint(-reach, reach)) / (8 if kind is float else 1) for _ in range(parameters))
        for reach in ranges
        for _ in range(150)
    ]


@pytest.mark.parametrize("function", [integers, loops, either, divides, results])
def test_integers(function: Callable[[int, int], Any]) -> None:
    machine = compiled(function)
    for x, y in cases(2, int):
        x, y = int(x) % (2000 if function is loops else 10**7) - 500, int(y)
        assert machine(x, y) == function(x, y), (x, y)


def test_floats() -> None:
    machine = compiled(floats)
    for x, y in cases(2, float):
        assert machine(x, y) == floats(x, y), (x, y)
    assert math.isnan(machine(math.nan, 1.0)) == math.isnan(floats(math.nan, 1.0))


def test_integers_wrap_around() -> None:
    assert compiled(wrap)((1 << 63) - 1) == -(1 << 63)


def wrap(x: int) -> int:
    """64 bits."""
    return x + 1


@record
class Sample(Record):
    """All kinds of fields."""

    next: Address = 0
    count: i64
    scale: f32
    small: u32
    weight: f64


def fields(sample: Sample, index: int) -> float:
    """Of a record, and of one of the array that it points at."""
    other = Sample.at(sample.next, index)
    other.count += sample.count
    other.scale, sample.small = sample.scale * 2, other.small + 1
    return scaled(other) + sample.weight


def scaled(sample: Sample) -> float:
    return sample.count * sample.scale


def test_records() -> None:
    """Python and kernels read and write the same fields."""
    machine = compiled(fields)
    for function in (machine, fields):
        array = (Sample * 3)()
        array[2].count, array[2].small = 5, (1 << 32) - 2
        sample = Sample(next=ctypes.addressof(array), count=-7, scale=0.75, small=0, weight=0.1)
        assert function(sample, 2) == -2 * 1.5 + 0.1
        assert (array[2].count, array[2].scale, sample.small) == (-2, 1.5, (1 << 32) - 1)


def squares(x: int, out: int, rows: Static[int]) -> None:
    """Sums in a list, for a constant number of rows of 32 values."""
    sums = [f32x16(1.0) for _ in unroll(range(rows))]
    for at in range(0, 64, 32):
        values = [load_bf16(x + 64 * m + at) for m in unroll(range(rows))]
        for m in unroll(range(rows)):
            sums[m] = fma(values[m], values[m], sums[m])
    double_all(sums, 0.5)
    for m in unroll(range(rows)):
        store_f32(out + 64 * m, sums[m])


def double_all(sums: list[f32x16], limit: float) -> None:
    """Of those above a limit, and halves of the others."""
    for m in unroll(range(len(sums))):
        limits = f32x16(limit)
        sums[m] = select((sums[m] > limits) & ~(sums[m] >= 3.0), sums[m] * 2, -(sums[m] / 2.0))


def three_rows(x: int, out: int) -> None:
    squares(x, out, 3)


def test_vectors() -> None:
    """Lists of vectors, unrolled loops, static parameters and functions that take lists."""
    machine = compiled(three_rows)
    x = torch.randn(3, 32, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    results = torch.zeros(2, 3, 16)
    machine(x.data_ptr(), results[0].data_ptr())
    three_rows(x.data_ptr(), results[1].data_ptr())
    assert torch.equal(results[0], results[1]) and results.any()


def no_annotation(x) -> None:  # type: ignore[no-untyped-def]
    pass


def narrows(x: float) -> None:
    n = 1
    n = x  # noqa: F841


def unknown(x: int) -> None:
    nothing(x)  # type: ignore[name-defined]  # noqa: F821


def calls_anything(x: int) -> None:
    print(x)


def too_few(x: int) -> int:
    return wrap()  # type: ignore[call-arg]


def a_dict(x: int) -> None:
    y = {x: 1}  # noqa: F841


def no_field(x: Sample) -> int:
    return x.missing  # type: ignore[attr-defined, no-any-return]


def not_static(x: int) -> None:
    squares(x, x, x)


def two_vectors(x: int) -> None:
    load_bf16(x) + load_i32(x)  # type: ignore[operator]


def not_unrolled(x: int) -> None:
    for _ in unroll(range(x)):
        pass


def a_power(x: int) -> int:
    return x**2


def a_method(x: int) -> int:
    return x.bit_length()


def ends_without_result(x: int) -> int:  # type: ignore[return]
    if x > 0:
        return 1


def ends_within_a_loop(x: int) -> int:
    while True:
        x -= 1
        if x < 0:
            return x


def test_a_loop_without_end_needs_no_result_behind_it() -> None:
    assert compiled(ends_within_a_loop)(5) == ends_within_a_loop(5) == -1


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (a_power, "there is no Pow of i64 and i64 in a kernel"),
        (a_method, "x is a value"),
        (ends_without_result, "ends_without_result may end without a result"),
        (no_annotation, "no_annotation lacks annotations"),
        (narrows, "n is i64, and this is double"),
        (unknown, "nothing is not known"),
        (calls_anything, "cannot be called in a kernel"),
        (too_few, "1 arguments are needed, not 0"),
        (a_dict, "Dict is not in the language"),
        (no_field, "Sample has no number missing"),
        (not_static, "a static parameter of squares needs a constant"),
        (two_vectors, "vectors of two types"),
        (not_unrolled, "unroll\\(\\) needs constants"),
    ],
)
def test_what_cannot_be_compiled_is_told_with_its_place(function: Callable[..., Any], why: str) -> None:
    with pytest.raises(CompileError, match=why) as caught:
        lower(function, "kernel")
    assert str(caught.value).startswith(f"{__file__}:")
