"""Operations of an instruction set against their formulas: of this process's set, and of LLVM's own
instructions, which any CPU has."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("llvmlite")

from llvmlite import ir

from kernels.cpu.compiler import types
from kernels.cpu.compiler.cache import compiled
from kernels.cpu.compiler.language import intrinsic
from kernels.cpu.isa.operations import Operations
from kernels.cpu.isa.selected import OPERATIONS
from kernels.cpu.isa.vectors import F32S, I32S, load, store

pytestmark = pytest.mark.cpu_kernels

Array = npt.NDArray[Any]
Write = Callable[..., Any]

_writes: list[Write] = []


@intrinsic(types.void(*[types.int64] * 4))
def _apply(builder: Any, a: Any, b: Any, c: Any, out: Any) -> None:
    store(builder, _writes[-1](builder, a, b, c), out)


def _kernel(a: int, b: int, c: int, out: int) -> None:
    _apply(a, b, c, out)


def compute(write: Write, result: str, *inputs: Array) -> Array:
    """write: makes a vector from the addresses of 16 values each."""
    _writes.append(write)
    _kernel.__qualname__ = f"kernel{len(_writes)}"
    out = np.zeros(16, result)
    addresses = [one.ctypes.data for one in inputs] + [0] * (3 - len(inputs))
    compiled(_kernel)(*addresses, out.ctypes.data)
    return out


@pytest.fixture(params=["own", "any"])
def operations(request: pytest.FixtureRequest) -> Operations:
    return OPERATIONS if request.param == "own" else Operations()


def chunks(values: Array) -> Array:
    """[N, 16], the last values again where 16 do not divide them."""
    return np.pad(values, (0, -len(values) % 16), "edge").reshape(-1, 16)


EDGES = [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -2.5, 3.3e38, -3.3e38, 3.3961775e38, 1.00390625, 1.01171875]


def test_bfloat16_is_the_nearest(operations: Operations):
    rng = np.random.default_rng(1)
    values = np.concatenate((np.array(EDGES), rng.standard_normal(500) * 10.0 ** rng.integers(-30, 30, 500)))
    at = chunks(values.astype(np.float32))[:8]

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return operations.round_to_bfloat16(builder, load(builder, a, F32S))

    for row in at:
        expected = torch.from_numpy(row.copy()).bfloat16()
        got = torch.from_numpy(compute(write, "int16", row)).view(torch.bfloat16)
        assert torch.equal(got.isnan(), expected.isnan())
        assert torch.equal(got[~got.isnan()], expected[~expected.isnan()])


def test_integers_are_the_nearest(operations: Operations):
    values = [
        0.5,
        1.5,
        -0.5,
        -1.5,
        2.4999,
        2.5001,
        1e6 + 0.5,
        -1e6,
        2147483520.0,
        2147483648.0,
        -2147483648.0,
    ]
    row = np.array([*values, -3e9, np.inf, -np.inf, np.nan, 7.0], np.float32)
    least = -(2**31)
    expected = [0, 2, 0, -2, 2, 3, 1000000, -1000000, 2147483520, least, least, least, least, least, least, 7]

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return operations.round_to_int(builder, load(builder, a, F32S))

    assert compute(write, "int32", row).tolist() == expected


def test_scaling_rounds_once(operations: Operations):
    values = np.linspace(0.7, 1.41, 16).astype(np.float32)

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return operations.scale(builder, load(builder, a, F32S), load(builder, b, F32S))

    for exponent in (-160, -149, -140, -127, -126, -125, -1, 0, 1, 100, 127):
        exponents = np.full(16, exponent, np.float32)
        expected = np.ldexp(values.astype(np.float64), exponent).astype(np.float32)
        assert np.array_equal(compute(write, "float32", values, exponents), expected), exponent


def test_reciprocals(operations: Operations):
    """To 2 ** -14 where the set has an approximation, else correctly rounded."""
    values = np.geomspace(1.0, 1e30, 16).astype(np.float32)

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return operations.reciprocal(builder, load(builder, a, F32S))

    exact, got = 1 / values.astype(np.float64), compute(write, "float32", values)
    assert np.abs(got * values.astype(np.float64) - 1).max() < 2.0**-14
    if type(operations).reciprocal is Operations.reciprocal:
        assert np.array_equal(got, exact.astype(np.float32))


@pytest.mark.parametrize("count", [16, 32])
def test_every_number_of_8_bits_is_widened(operations: Operations, count: int):
    """As many bytes as a vector has words, or twice as many."""
    codes = torch.arange(256, dtype=torch.uint8)
    expected = codes.view(torch.float8_e4m3fn).bfloat16()

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        widened = operations.widen_e4m3(builder, load(builder, a, ir.VectorType(ir.IntType(8), count)))
        return builder.bitcast(widened, I32S) if count == 32 else widened

    for first in range(0, 256, count):
        row = codes[first : first + count].numpy()
        got = compute(write, "int32" if count == 32 else "int16", row)
        found = torch.from_numpy(got).view(torch.bfloat16)
        torch.testing.assert_close(found, expected[first : first + count], rtol=0, atol=0, equal_nan=True)


def dot(operations: Operations, name: str, result: Any) -> Write:
    """sums + weights * inputs, over the parts of words."""

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        one = getattr(operations, name)
        sums = load(builder, a, result)
        weights = one.weights(builder, load(builder, b, I32S))
        inputs = one.inputs(builder, load(builder, c, I32S))
        assert len(weights) == len(inputs) == one.parts
        for weight, value in zip(weights, inputs, strict=True):
            sums = one.add(builder, sums, weight, builder.bitcast(value, I32S))
        return sums

    return write


def test_pairs(operations: Operations):
    """The second product of a pair is added first; both are exact, and each sum is rounded."""
    rng = np.random.default_rng(2)
    sums = rng.standard_normal(16).astype(np.float32)
    left, right = (torch.from_numpy(rng.standard_normal((16, 2))).bfloat16() for _ in range(2))
    products = left.double().numpy() * right.double().numpy()
    expected = (sums + products[:, 1]).astype(np.float32)
    expected = (expected + products[:, 0]).astype(np.float32)
    words = (side.view(torch.int32).flatten().numpy() for side in (left, right))
    assert np.array_equal(compute(dot(operations, "pairs", F32S), "float32", sums, *words), expected)


def test_quads(operations: Operations):
    """Exact, with the largest of all bytes as well."""
    rng = np.random.default_rng(3)
    sums = rng.integers(-(10**9), 10**9, 16).astype(np.int32)
    signed, unsigned = rng.integers(-127, 128, (16, 4)), rng.integers(0, 256, (16, 4))
    signed[:2], unsigned[:2] = [[127], [-128]], 255
    expected = sums + (signed * unsigned).sum(1)
    words = signed.astype(np.int8).view(np.int32).ravel(), unsigned.astype(np.uint8).view(np.int32).ravel()
    assert np.array_equal(compute(dot(operations, "quads", I32S), "int32", sums, *words), expected)


def test_nibbles(operations: Operations):
    """Weights below 128 and signed bytes: exact, with the largest of all as well."""
    rng = np.random.default_rng(4)
    sums = rng.integers(-(10**9), 10**9, 16).astype(np.int32)
    unsigned, signed = rng.integers(0, 128, (16, 4)), rng.integers(-128, 128, (16, 4))
    unsigned[:2], signed[:2] = 127, [[127], [-128]]
    expected = sums + (signed * unsigned).sum(1)
    words = unsigned.astype(np.uint8).view(np.int32).ravel(), signed.astype(np.int8).view(np.int32).ravel()
    assert np.array_equal(compute(dot(operations, "nibbles", I32S), "int32", sums, *words), expected)


def test_nibbles_of_two_words(operations: Operations):
    """Weights below 64 and signed bytes: exact, with the largest of all as well."""
    rng = np.random.default_rng(6)
    sums = rng.integers(-(10**9), 10**9, 16).astype(np.int32)
    unsigned, signed = rng.integers(0, 64, (16, 8)), rng.integers(-128, 128, (16, 8))
    unsigned[:2], signed[:2] = 63, [[127], [-128]]
    expected = sums + (signed * unsigned).sum(1)

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        weights, values = (
            [load(builder, builder.add(at, ir.Constant(at.type, offset)), I32S) for offset in (0, 64)]
            for at in (b, c)
        )
        return operations.nibbles.add_two(builder, load(builder, a, I32S), weights, values)

    words = (
        side.astype(np.int8).reshape(16, 2, 4).transpose(1, 0, 2).copy().view(np.int32).ravel()
        for side in (unsigned, signed)
    )
    assert np.array_equal(compute(write, "int32", sums, *words), expected)


def test_small_numbers_are_multiplied(operations: Operations):
    """Zero points by sums of inputs: up to 255, and of 16 bits."""
    rng = np.random.default_rng(5)
    one, other = rng.integers(0, 256, 16).astype(np.int32), rng.integers(-(2**15), 2**15, 16).astype(np.int32)
    one[:4], other[:4] = [255, 255, 32767, 32767], [-(2**15), 2**15 - 1] * 2

    def write(builder: Any, a: Any, b: Any, c: Any) -> Any:
        return operations.multiply_small(builder, load(builder, a, I32S), load(builder, b, I32S))

    assert np.array_equal(compute(write, "int32", one, other), one * other)


def test_some_lanes_are_stored(operations: Operations):
    """The others stay what they are."""
    for kind, name in ((F32S, "float32"), (ir.VectorType(ir.IntType(16), 16), "int16")):
        for count in (0, 1, 7, 15, 16, 40):
            values, out = np.arange(1, 17).astype(name), np.zeros(16, name)

            def write(builder: Any, a: Any, b: Any, c: Any, kind: Any = kind, count: int = count) -> Any:
                from kernels.cpu.isa.vectors import first_lanes, word

                number = builder.add(builder.sub(a, a), word(count))
                mask = first_lanes(builder, number)
                whole = builder.icmp_signed(">=", number, word(16))
                operations.store_first(builder, load(builder, a, kind), b, mask, whole)
                return load(builder, a, kind)

            compute(write, name, values, out)
            assert out.tolist() == [i + 1 if i < count else 0 for i in range(16)]
