"""The interpreter computes as a device does: conversions as torch's, and products in ascending order."""

from fractions import Fraction
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import triton.language as tl
from triton.runtime import interpreter

from kernels.triton.interpreter import BITS, DTYPES, add_product, convert, to_torch
from tests.kernels.triton.probes import jit

EDGES = [
    0.0, -0.0, 1.0, -1.0, 1.0078125, 1.00390625, 1.01171875, 448.0, 463.9, 464.0, -500.0, 65504.0, 1e-3,
    2.0**-9, 2.0**-10, 3 * 2.0**-10, 1.0625, 1.1875, 1.9375, 3.39e38, 1e-40, torch.inf, -torch.inf, torch.nan,
]  # fmt: skip
"""Ties of bfloat16 and of e4m3, both ends of their ranges, and what is no number."""


def raw(x: torch.Tensor) -> np.ndarray:
    """As the interpreter keeps it."""
    return (
        x.view({1: torch.uint8, 2: torch.uint16}[x.element_size()]).numpy() if x.dtype in BITS else x.numpy()
    )


@pytest.mark.parametrize(("source", "target"), list(product(DTYPES, DTYPES)))
def test_conversions_are_those_of_torch(source: str, target: str):
    """Rounded to nearest, ties to even, with carries into the next power of two; of any shape."""
    given = torch.tensor(EDGES, dtype=torch.float64).to(DTYPES[source]).view(4, 6)
    found = convert(raw(given), source, target)
    expected = given.to(DTYPES[target])
    assert found.shape == (4, 6) and found.dtype == raw(expected).dtype
    torch.testing.assert_close(
        to_torch(found, DTYPES[target]).double(), expected.double(), rtol=0, atol=0, equal_nan=True
    )


def test_a_view_that_is_not_contiguous_is_converted_in_its_order():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert (to_torch(convert(x.T, "fp32", "bf16"), torch.bfloat16).float().numpy() == x.T).all()
    assert convert(np.float32(2.5).reshape(()), "fp32", "fp16").shape == ()


def test_products_are_added_one_by_one():
    """Each product is rounded, and each sum, in ascending order of k: large numbers swallow what comes after
    them, and not what comes before."""
    a = np.array([[2.0**24, 1.0, 1.0, -(2.0**24), 1.0]], np.float32)
    ones, zero = np.ones((5, 1), np.float32), np.zeros((1, 1), np.float32)
    assert add_product(a, ones, zero).tolist() == [[1.0]]
    assert add_product(a[:, ::-1], ones, zero).tolist() == [[3.0]]
    assert add_product(a, ones, zero + 8).tolist() == [[9.0]]
    x = np.float32(1 + 2.0**-12)
    exact = Fraction(float(x)) ** 2
    found = add_product(np.full((1, 1), x), np.full((1, 1), x), np.full((1, 1), np.float32(-1.0)))
    assert found[0, 0] == np.float32(float(exact)) - 1 != float(exact - 1)  # not fused


@pytest.mark.parametrize(("m", "k", "n"), [(1, 1, 1), (3, 5, 2), (16, 7, 16), (2, 0, 3)])
def test_a_result_does_not_depend_on_its_neighbours(m: int, k: int, n: int):
    """Each element is that of its row and its column alone; what is added to stays as it is."""
    rng = np.random.default_rng(m)
    a, b, acc = (rng.standard_normal(size).astype(np.float32) for size in ((m, k), (k, n), (m, n)))
    before = acc.copy()
    found = add_product(a, b, acc)
    assert (acc == before).all()
    np.testing.assert_allclose(found, a.astype(np.float64) @ b + before, rtol=1e-5, atol=1e-5)
    for i, j in product(range(m), range(n)):
        alone = add_product(a[i : i + 1], b[:, j : j + 1], acc[i : i + 1, j : j + 1])
        assert alone[0, 0] == found[i, j]


@jit
def _cast(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@jit
def _dot(a, b, out, BLOCK: tl.constexpr):
    row, column = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    at = row * BLOCK + column
    total = tl.dot(tl.load(a + at), tl.load(b + at), tl.load(out + at), input_precision="ieee")
    tl.store(out + at, total)


CASTS = [
    pair for pair in product([torch.float32, torch.float16, torch.bfloat16], repeat=2) if pair[0] != pair[1]
]
TO_8_BITS = [(torch.float32, torch.float8_e4m3fn), (torch.float8_e4m3fn, torch.float32)]


@pytest.mark.parametrize(("source", "target"), [*CASTS, *TO_8_BITS], ids=str)
def test_casts_of_kernels(source: torch.dtype, target: torch.dtype, device: torch.device):
    """Of numbers within e4m3's range: beyond it, kernels limit them first."""
    x = torch.randn(64, generator=torch.Generator().manual_seed(1)).mul(20).to(source)
    x[:12] = torch.tensor(EDGES[:8] + EDGES[13:17]).to(source)
    out = torch.zeros(64, dtype=target, device=device)
    if target == torch.float8_e4m3fn:
        x = x.clamp(-448, 448)
    _cast[(1,)](x.to(device), out, 64)
    assert torch.equal(out.cpu().double(), x.to(target).double())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_products_of_kernels(dtype: torch.dtype, device: torch.device):
    """Exact where every sum is: small integers, on top of what was there."""
    generator = torch.Generator().manual_seed(3)
    a, b = (torch.randint(-8, 9, (16, 16), generator=generator).to(dtype) for _ in "ab")
    start = torch.randint(-50, 50, (16, 16), generator=generator).float()
    out = start.clone().to(device)
    _dot[(1,)](a.to(device), b.to(device), out, 16)
    assert torch.equal(out.cpu(), start + a.float() @ b.float())


@jit
def _total(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK) + BLOCK
    tl.store(out + tl.program_id(0), tl.sum(tl.load(x + at), 0))


@pytest.mark.skipif(not isinstance(_total, interpreter.InterpretedFunction), reason="kernels are compiled")
def test_nothing_is_computed_in_vain(monkeypatch: pytest.MonkeyPatch):
    """Neither a launch nor tl.sum, a device function, looks through the language for operations; a sum of
    integers is computed once."""
    sums: list[tuple[int, ...]] = []
    add = interpreter.InterpreterBuilder.create_add

    def noted(self: interpreter.InterpreterBuilder, left: Any, right: Any) -> Any:
        sums.append(left.data.shape)
        return add(self, left, right)

    monkeypatch.setattr(
        interpreter.inspect, "getmembers", lambda package: pytest.fail("looks for operations")
    )
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_add", noted)
    x, out = torch.arange(32, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    _total[(2,)](x, out, 16)
    assert out.tolist() == [int(x[16:].sum())] * 2 and sums == [(16,)] * 2


@pytest.mark.skipif(not isinstance(_total, interpreter.InterpretedFunction), reason="kernels are compiled")
def test_dtypes_are_those_of_the_interpreter():
    """Of values, of tiles of them, and of pointers."""
    for kind, expected in ((tl.bfloat16, np.uint16), (tl.int1, bool), (tl.float32, np.float32)):
        for one in (kind, tl.block_type(kind, [4])):
            assert interpreter._get_np_dtype(one) == np.dtype(expected)
        pointer = tl.pointer_type(kind)
        for one in (pointer, tl.block_type(pointer, [4])):
            assert interpreter._get_np_dtype(one) == np.dtype(np.uint64)


@pytest.mark.skipif(not isinstance(_total, interpreter.InterpretedFunction), reason="kernels are compiled")
def test_types_are_made_once():
    """Of each shape and each element, of which a pointer is one; what tensors say of themselves is theirs."""
    one = tl.block_type(tl.float32, [4, 8])
    assert tl.block_type(tl.int32, [tl.constexpr(4), tl.constexpr(8)]).with_element_ty(tl.float32) is one
    elements = tl.float32, tl.int32, tl.pointer_type(tl.float32), tl.pointer_type(tl.float32, const=True)
    kinds = [tl.block_type(element, shape) for element in elements for shape in ([8], [4, 8], [8, 4])]
    assert len(set(map(id, kinds))) == 12
    for kind in [*kinds, *kinds, tl.int64, tl.int64]:
        tensor = tl.tensor("handle", kind)
        assert (tensor.handle, tensor.type, tensor.dtype) == ("handle", kind, kind.scalar)
        sizes = list(kind.shape) if kind.is_block() else []
        assert [size.value for size in tensor.shape] == sizes
        assert tensor.numel.value == int(np.prod(sizes))
    with pytest.raises(ValueError, match="power of 2"):
        tl.block_type(tl.float32, [3])


@jit
def _mixed(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row, column = at[:, None], at[None, :]
    whole, half = tl.load(x + at), tl.load(x + at).to(tl.float16)
    tl.store(out + row * BLOCK + column, (whole[:, None] + half[None, :]) * (row < column) + at[None, :] // 3)


def test_operands_of_two_types_and_shapes(device: torch.device):
    """Are converted and spread, as without what is passed over."""
    x, at = torch.tensor([0.5, -1.25, 3.0, 7.0]), torch.arange(4)
    out = torch.zeros(4, 4, device=device)
    _mixed[(1,)](x.to(device), out, 4)
    assert torch.equal(out.cpu(), (x[:, None] + x) * (at[:, None] < at) + at // 3)
