"""Operators and functions of vectors, compiled: what Python gives, at the edges of their types; functions
against float64."""

from collections.abc import Callable
from math import inf, nan
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.vectors import f32x8, f32x16, i32x8, i32x16  # noqa: E402
from kernels.cpu.elementwise.elements import BFLOAT16, FLOAT32  # noqa: E402
from kernels.cpu.isa.doubles import load_f32x8, store_f32x8  # noqa: E402
from kernels.cpu.isa.exp import (
    capped,  # noqa: E402
    precise_exp,  # noqa: E402
    softplus,  # noqa: E402
)
from kernels.cpu.isa.lanes import (  # noqa: E402
    as_f32,
    bits_of,
    bits_of_lanes,
    float_of,
    larger_integer,
    largest_integer,
    multiply_small,
    sum_of_lanes,
)
from kernels.cpu.isa.narrow_words import load_halves, load_halves_x8, read_half  # noqa: E402
from kernels.cpu.isa.simd import (  # noqa: E402
    PAIR_PARTS,
    QUAD_PARTS,
    add_floats,
    add_nibbles,
    add_pairs,
    add_quads,
    add_two_nibbles,
    fma,
    keep_first,
    load_bf16,
    load_f32,
    load_first_bf16,
    load_first_f32,
    load_first_i32,
    load_i32,
    load_i32x8,
    pair_inputs,
    pair_weights,
    quad_inputs,
    quad_weights,
    select,
    sqrt,
    store_bf16,
    store_f32,
    store_first_bf16,
    store_first_f32,
    store_i32,
    sum_in_order,
    to_f32,
    whole_words,
)
from kernels.cpu.isa.vectors import read_f32, read_i32, write_f32, write_i32, write_u32  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Array = npt.NDArray[Any]
EDGES = [0.0, -0.0, 1.0, -1.5, inf, -inf, nan, 3.3e38, -3.3e38, 1e-30, 0.1, 2.0**24, -7.25, 1e20, -1e-20, 3.0]
LARGEST = 2**31 - 1
WHOLE = [0, 1, -1, 2, -2, LARGEST, -(2**31), LARGEST - 1, 255, -256, 65536, 7, -7, 1 << 30, 12345, -99]


def floats(values: list[float]) -> Array:
    return np.array(values, np.float32)


def results(kernel: Callable[..., None], dtype: str, rows: int, *given: Any) -> tuple[Array, Array]:
    """What compiled code and Python write: [rows, 16] each. given: arrays, by address, and numbers."""
    both = np.zeros((2, rows, 16), dtype)
    arguments = [each.ctypes.data if isinstance(each, np.ndarray) else each for each in given]
    for function, out in zip((compiled(kernel), kernel), both, strict=True):
        function(*arguments, out.ctypes.data)
    return both[0], both[1]


def float_operators(x: int, y: int, out: int) -> None:
    """Of two vectors, and of a vector and a number."""
    a, b = load_f32(x), load_f32(y)
    store_f32(out, a + b)
    store_f32(out + 64, a - b)
    store_f32(out + 128, a * b)
    store_f32(out + 192, a / b)
    store_f32(out + 256, -a)
    store_f32(out + 320, abs(a))
    store_f32(out + 384, (a * 0.1 + 3.0) / 7.0 - 0.3)
    store_f32(out + 448, fma(a, b, f32x16(0.1)))
    store_f32(out + 512, fma(a, a, -(a * a)))


def test_operators_of_floats():
    """Each rounded once; infinities, NaN and zeros of either sign."""
    for turn in range(16):
        machine, python = results(float_operators, "float32", 9, floats(EDGES), np.roll(floats(EDGES), turn))
        assert np.array_equal(machine, python, equal_nan=True)
        numbers = ~np.isnan(machine)
        assert np.array_equal(np.signbit(machine[numbers]), np.signbit(python[numbers]))


def comparisons(x: int, y: int, out: int) -> None:
    """Each mask as ones and zeros; masks among themselves."""
    a, b, one, none = load_f32(x), load_f32(y), i32x16(1), i32x16(0)
    store_i32(out, select(a < b, one, none))
    store_i32(out + 64, select(a <= b, one, none))
    store_i32(out + 128, select(a > b, one, none))
    store_i32(out + 192, select(a >= b, one, none))
    store_i32(out + 256, select(a == b, one, none))
    store_i32(out + 320, select(a != b, one, none))
    store_i32(out + 384, select((a < b) & (b > 0.0), one, none))
    store_i32(out + 448, select((a < b) | ~(b > 0.0), one, none))
    p, q = load_i32(x), load_i32(y)
    store_i32(out + 512, select(p < q, one, none))
    store_i32(out + 576, select(p >= q, one, none))
    store_i32(out + 640, select(p == q, one, none))


def test_comparisons():
    """A NaN is unequal to everything, and neither above nor below; integers are signed."""
    for turn in range(16):
        machine, python = results(comparisons, "int32", 11, floats(EDGES), np.roll(floats(EDGES), turn))
        assert np.array_equal(machine, python)
    unordered = machine[:6, EDGES.index(nan)]
    assert unordered.tolist() == [0, 0, 0, 0, 0, 1]


def integer_operators(x: int, y: int, out: int) -> None:
    """Integers wrap around, and >> keeps the sign."""
    a, b = load_i32(x), load_i32(y)
    store_i32(out, a + b)
    store_i32(out + 64, a - b)
    store_i32(out + 128, a * b)
    store_i32(out + 192, -a)
    store_i32(out + 256, a << 5)
    store_i32(out + 320, a >> 5)
    store_i32(out + 384, (a & b) ^ 255)
    store_i32(out + 448, (a | b) & -256)
    store_i32(out + 512, ~a)
    store_i32(out + 576, a >> (b & 31))


def test_operators_of_integers():
    values = np.array(WHOLE, np.int32)
    for turn in range(16):
        machine, python = results(integer_operators, "int32", 10, values, np.roll(values, turn))
        assert np.array_equal(machine, python)


def first_lanes(x: int, count: int, out: int) -> None:
    """What is behind the first ones is zeros where they are loaded, and stays where they are stored."""
    store_f32(out, load_first_f32(x, count))
    store_i32(out + 64, load_first_i32(x, count))
    store_f32(out + 128, load_first_bf16(x, count))
    store_f32(out + 192, keep_first(load_f32(x), count))
    store_first_f32(out + 256, load_f32(x), count)
    store_first_bf16(out + 320, load_f32(x), count)
    store_bf16(out + 384, load_f32(x))
    store_f32(out + 448, load_bf16(x))


def test_first_lanes():
    """None, some, all."""
    values = floats([1.1, -2.2, 3.3e38, 1e-20, *range(5, 17)])
    machine_code = compiled(first_lanes)
    for count in range(17):
        both = np.full((2, 8, 16), 77, np.float32)
        for function, out in zip((machine_code, first_lanes), both, strict=True):
            function(values.ctypes.data, count, out.ctypes.data)
        assert np.array_equal(both[0], both[1], equal_nan=True)
        assert both[0, 0].tolist() == [*values[:count], *[0.0] * (16 - count)]
        assert both[0, 4].tolist() == [*values[:count], *[77.0] * (16 - count)]


def negative_counts(x: int, count: int, out: int) -> None:
    store_first_f32(out, load_f32(x), count)
    store_first_bf16(out + 64, load_f32(x), count)
    store_f32(out + 128, keep_first(load_f32(x), count))


@pytest.mark.parametrize(("count", "written"), [(-5, 0), (-(1 << 40), 0), (17, 16), (1 << 40, 16)])
def test_counts_beyond_a_vector_store_none_or_all(count: int, written: int):
    values = np.arange(1, 17, dtype=np.float32)
    machine, python = results(negative_counts, "float32", 3, values, count)
    assert np.array_equal(machine, python) and np.count_nonzero(machine[0]) == written


def sums(x: int, words: int, halves: int, out: int) -> None:
    """In order, and numbers of other types."""
    store_f32(out, to_f32(load_i32(words)))
    write_f32(out + 64, sum_in_order(load_f32(x)))
    write_f32(out + 68, sqrt(sum_in_order(load_f32(x))))
    store_i32(out + 128, load_halves(halves))
    write_u32(out + 192, read_half(halves))


def test_sums_and_other_types():
    """Sums from the first lane to the last: another order would give other bits; float16 with its edges."""
    values = floats([1e8, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, -1e8, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7])
    halves = np.array([65504, -65504, 6e-8, 1e-5, inf, -inf, nan, 0.1, -0.0, *range(7)], np.float16)
    machine, python = results(sums, "int32", 4, values, np.array(WHOLE, np.int32), halves)
    assert np.array_equal(machine, python)
    total = np.float32(0)
    for value in values:
        total += value
    assert machine.view(np.float32)[1, 0] == total != values.astype(np.float64).sum()
    assert np.array_equal(machine[2].view(np.float32), halves.astype(np.float32), equal_nan=True)


def lanes(x: int, y: int, out: int) -> None:
    """Integers of lanes, and the bits of floats."""
    a, b = load_i32(x), load_i32(y)
    store_i32(out, larger_integer(a, b))
    store_i32(out + 64, multiply_small(a & 32767, (b << 16) >> 16))
    store_i32(out + 128, bits_of_lanes(as_f32(a) * 0.5))
    write_i32(out + 192, sum_of_lanes(a))
    write_i32(out + 196, largest_integer(a))
    write_i32(out + 200, bits_of(read_f32(x + 16)))
    write_f32(out + 204, float_of(read_i32(y + 20)))


def test_integers_of_lanes():
    """Largest and least ones; sums that fit."""
    values = np.array(WHOLE, np.int32)
    values[5] = -LARGEST  # the sum fits 32 bits
    for turn in range(16):
        machine, python = results(lanes, "int32", 4, values, np.roll(values, turn))
        assert np.array_equal(machine, python)
        assert machine[3, 0] == values.sum(dtype=np.int64) and machine[3, 1] == values.max()


def dots(x: int, y: int, out: int) -> None:
    """Of words: floats, pairs of bfloat16, and bytes, over all parts of a word."""
    weights, inputs = load_i32(x), load_i32(y)
    pairs = add_pairs(f32x16(0.5), pair_weights(weights, 0), pair_inputs(inputs, 0))
    if PAIR_PARTS > 1:
        pairs = add_pairs(pairs, pair_weights(weights, 1), pair_inputs(inputs, 1))
    store_f32(out, pairs)
    quads = add_quads(i32x16(-3), quad_weights(weights, 0), quad_inputs(inputs, 0))
    if QUAD_PARTS > 1:
        quads = add_quads(quads, quad_weights(weights, 1), quad_inputs(inputs, 1))
    store_i32(out + 64, quads)
    store_f32(out + 128, add_floats(f32x16(0.5), weights, inputs))
    store_i32(out + 192, add_nibbles(i32x16(-3), weights & 0x7F7F7F7F, inputs))
    small, shifted = weights & 0x3F3F3F3F, weights >> 2 & 0x3F3F3F3F
    store_i32(out + 256, add_two_nibbles(i32x16(-3), small, inputs, shifted, weights))


def test_products_of_words():
    """Whatever the parts are in this instruction set, their sum is that of the formula."""
    rng = np.random.default_rng(5)
    words = torch.from_numpy(rng.standard_normal((2, 16, 2)).astype(np.float32)).bfloat16().view(torch.int32)
    x, y = (each.flatten().numpy().copy() for each in words)
    machine, python = results(dots, "int32", 5, x, y)
    assert np.array_equal(machine, python)
    left, right = (each.view(np.int8).reshape(16, 4).astype(int) for each in (x, y))
    assert machine[1].tolist() == (-3 + (left * (right & 255)).sum(1)).tolist()
    assert machine[3].tolist() == (-3 + ((left & 127) * right).sum(1)).tolist()
    bytes_of_both = (left & 63) * right + ((left & 255) >> 2) * left
    assert machine[4].tolist() == (-3 + bytes_of_both.sum(1)).tolist()


def eights(x: int, y: int, halves: int, out: int) -> None:
    """Of 8 words, as of 16."""
    first, second = load_i32x8(x), load_i32x8(y)
    store_f32x8(out, add_floats(f32x8(0.5), first, second))
    store_f32x8(out + 32, fma(load_f32x8(x), load_f32x8(y), f32x8(0.5)))
    store_f32x8(out + 64, add_floats(f32x8(0.0), whole_words(load_halves_x8(halves), 0), i32x8(0x3F800000)))
    if PAIR_PARTS > 1:
        store_f32x8(out + 96, add_pairs(f32x8(0.5), pair_weights(first, 0), pair_weights(second, 1)))


def test_vectors_of_eight():
    values = np.random.default_rng(6).standard_normal((2, 8)).astype(np.float32)
    halves = np.arange(8).astype(np.float16) - 0.5
    machine, python = results(eights, "float32", 2, *values, halves)
    assert np.array_equal(machine, python)
    both = (values[0].astype(np.float64) * values[1] + 0.5).astype(np.float32)
    assert machine[0].tolist() == [*both, *both] and machine[1, :8].tolist() == halves.tolist()


def functions(x: int, out: int) -> None:
    """Of one vector."""
    a = load_f32(x)
    store_f32(out, precise_exp(a))
    store_f32(out + 64, softplus(a))
    store_f32(out + 128, capped(a, 2.5))
    store_f32(out + 192, FLOAT32.times_sigmoid(a, a))
    store_f32(out + 256, BFLOAT16.times_sigmoid(a, a))


EXACT: list[tuple[str, Callable[[Array], Array], float, float]] = [
    # name, in float64, relative error at 0, absolute error
    ("exp", np.exp, 5e-7, 1e-38),
    ("softplus", lambda x: np.log1p(np.exp(-np.abs(x))) + np.maximum(x, 0), 5e-7, 1e-38),
    ("cap", lambda x: 2.5 * np.tanh(x / 2.5), 0, 1e-6),
    ("silu", lambda x: x / (1 + np.exp(-x)), 5e-7, 1e-36),
    ("rough silu", lambda x: x / (1 + np.exp(-x)), 2.5e-4, 1e-36),
]


@pytest.mark.parametrize("row", range(len(EXACT)), ids=[row[0] for row in EXACT])
def test_functions_against_float64(row: int):
    """All over where results are normal numbers, and in Python as compiled. An exponential's error grows with
    its exponent, of which float32 keeps fewer bits behind the point."""
    _, exact, relative, absolute = EXACT[row]
    values = np.concatenate([np.linspace(-85, 85, 331), np.linspace(-2, 2, 299), [0.0, -0.0]])
    machine_code = compiled(functions)
    for chunk in np.resize(values, (40, 16)).astype(np.float32):
        both = np.zeros((2, 5, 16), np.float32)
        for function, out in zip((machine_code, functions), both, strict=True):
            function(chunk.ctypes.data, out.ctypes.data)
        expected = exact(chunk.astype(np.float64))
        bound = relative * (1 + np.abs(chunk) / 8) * np.abs(expected) + absolute
        for found in both[:, row]:
            assert (np.abs(found - expected) <= bound).all()


def test_functions_at_the_ends():
    """Infinities and NaN."""
    given = floats([inf, -inf, nan, 1000.0, -1000.0, 89.0, -104.0, 0.0, *[1.0] * 8])
    machine, _ = results(functions, "float32", 5, given)
    exp, soft, cap, silu, rough = machine[:, :8]
    assert exp[[1, 4, 7]].tolist() == [0, 0, 1] and exp[6] < 1e-44
    assert soft[[0, 3]].tolist() == [inf, 1000] and soft[[1, 4]].tolist() == [0, 0]
    assert cap[[0, 1, 2, 3, 4]].tolist() == [2.5, -2.5, 2.5, 2.5, -2.5]
    for found in (silu, rough):
        assert found[[0, 3, 7]].tolist() == [inf, 1000, 0] and np.isnan(found[2]) and abs(found[4]) < 1e-30
