"""What parts of a row make together: compiled code gives what Python gives, and float64."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.sizes import partial_bytes  # noqa: E402
from kernels.cpu.attention.split_kv import merge_part  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Array = npt.NDArray[np.float32]
machine_code = cache(compiled)
VALUES, ROW = 40, 64
"""Of a pair: fewer than its row has."""


def merge(to: int, part: int) -> None:
    """Compiled by merged()."""
    merge_part(to, part, VALUES)


def random_part(seed: int) -> Array:
    """Sums [8, ROW], totals [16], largest [16]."""
    rng = np.random.default_rng(seed)
    part = rng.normal(0, 3, partial_bytes(VALUES) // 4).astype(np.float32)
    part[8 * ROW : 8 * ROW + 16] = rng.uniform(1, 9, 16)
    return part


def merged(before: Array, own: Array) -> Array:
    """By compiled code; Python computes the same but for roundings of e ** x."""
    results = []
    for function in (machine_code(merge), merge):
        results.append(before.copy())
        function(results[-1].ctypes.data, own.ctypes.data)
    np.testing.assert_allclose(*results, rtol=1e-5, atol=1e-5)
    return results[0]


def test_parts_are_weighed_by_their_largest_scores():
    before, own = random_part(1), random_part(2)
    found = merged(before, own)
    scores, own_scores = (part[8 * ROW + 16 :].astype(np.float64) for part in (before, own))
    largest = np.maximum(scores, own_scores)
    factor, own_factor = np.exp(scores - largest), np.exp(own_scores - largest)
    assert (found[8 * ROW + 16 :] == largest).all()
    totals = before[8 * ROW :][:16] * factor + own[8 * ROW :][:16] * own_factor
    np.testing.assert_allclose(found[8 * ROW : 8 * ROW + 16], totals, rtol=1e-6)
    sums, own_sums = (part[: 8 * ROW].reshape(8, ROW).astype(np.float64) for part in (before, own))
    exact = sums * factor[:8, None] + own_sums * own_factor[:8, None]
    np.testing.assert_allclose(found[: 8 * ROW].reshape(8, ROW), exact, rtol=1e-5, atol=1e-5)


def test_a_part_that_sees_nothing_changes_no_bit():
    """And beside nothing, a part is what it is: also where both see nothing."""
    nothing, own = np.zeros(partial_bytes(VALUES) // 4, np.float32), random_part(3)
    nothing[8 * ROW + 16 :] = -np.inf
    assert (merged(own, nothing) == own).all()
    assert (merged(nothing, own) == own).all()
    assert (merged(nothing, nothing) == nothing).all()
