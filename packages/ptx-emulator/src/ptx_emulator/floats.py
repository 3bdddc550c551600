"""Floating point as the GPU has it, in numpy: fused multiply and add, bfloat16, e4m3, and truncation."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
_E4M3 = np.array(
    [
        (-1.0) ** (code >> 7)
        * (
            (code & 7) / 8 * 2.0**-6
            if not (code >> 3) & 15
            else (1 + (code & 7) / 8) * 2.0 ** (((code >> 3) & 15) - 7)
        )
        if code & 0x7F != 0x7F
        else np.nan
        for code in range(256)
    ],
    dtype=np.float32,
)
"""The value of each byte."""
_E4M3_POSITIVE = _E4M3[:127].astype(np.float64)


def fma32(a: Array, b: Array, c: Array) -> Array:
    """a * b + c, rounded once to float32. The product of two float32 is exact in float64; the sum is rounded
    to odd there, so that the second rounding is the only one that counts."""
    with np.errstate(all="ignore"):
        product = a.astype(np.float64) * b.astype(np.float64)
        other = c.astype(np.float64)
        total = product + other
        back = total - product
        error = (product - (total - back)) + (other - back)
        bits = total.view(np.int64)
        inexact = np.isfinite(total) & (error != 0) & ((bits & 1) == 0)
        toward = np.where((error > 0) == (total > 0), 1, -1)
        return np.where(inexact, bits + toward, bits).view(np.float64).astype(np.float32)


def fma64(a: Array, b: Array, c: Array) -> Array:
    """a * b + c in float64 with the product's error added: right but for double rounding in rare cases."""
    with np.errstate(all="ignore"):
        product = a * b
        high_a, high_b = _high(a), _high(b)
        low_a, low_b = a - high_a, b - high_b
        error = ((high_a * high_b - product) + high_a * low_b + low_a * high_b) + low_a * low_b
        total = product + c
        back = total - product
        rest = (product - (total - back)) + (c - back)
        exact = total + (np.where(np.isfinite(error), error, 0) + rest)
        return np.where(np.isfinite(total), exact, total)


def _high(x: Array) -> Array:
    """The upper half of the bits of a float64 (Veltkamp's splitting)."""
    scaled = x * 134217729.0
    return scaled - (scaled - x)


def from_bfloat16(bits: Array) -> Array:
    """bits: uint16. Returns float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def to_bfloat16(x: Array) -> Array:
    """x: float32. Returns uint16, rounded to nearest even; NaN is 0x7fff, as the GPU has it."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(x), 0x7FFF, rounded).astype(np.uint16)


def from_e4m3(bits: Array) -> Array:
    """bits: uint8. Returns float32."""
    return _E4M3[bits]


def to_e4m3(x: Array) -> Array:
    """x: float32. Returns uint8, rounded to nearest even; what is too large becomes the largest, 448
    (satfinite)."""
    size = np.minimum(np.abs(np.where(np.isnan(x), 0, x)).astype(np.float64), 448.0)
    above = np.clip(np.searchsorted(_E4M3_POSITIVE, size), 1, 126)
    low, high = _E4M3_POSITIVE[above - 1], _E4M3_POSITIVE[above]
    up = (size - low > high - size) | ((size - low == high - size) & (above % 2 == 0))
    code = np.where(up, above, above - 1)
    return np.where(np.isnan(x), 0x7F, code | np.where(np.signbit(x), 0x80, 0)).astype(np.uint8)


def truncate32(x: Array) -> Array:
    """x: float64. Returns float32, rounded toward zero."""
    with np.errstate(all="ignore"):
        near = x.astype(np.float32)
        beyond = np.abs(near.astype(np.float64)) > np.abs(x)
        return np.where(beyond & np.isfinite(x), np.nextafter(near, np.float32(0)), near)


def flush(x: Array) -> Array:
    """Subnormal float32 become zeros of their sign (.ftz)."""
    tiny = np.abs(x) < np.float32(2.0**-126)
    return np.where(tiny, np.copysign(np.float32(0), x), x)
