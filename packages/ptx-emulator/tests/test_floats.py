"""The emulator's arithmetic against exact rationals and torch's conversions."""

from fractions import Fraction

import numpy as np
import pytest
import torch

from ptx_emulator import floats


def test_a_fused_product_is_rounded_once():
    """Against rationals: also where the product in float64 plus a small number is a tie in float32."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal(3000).astype(np.float32) for _ in "ab")
    c = (rng.standard_normal(3000) * 2.0 ** rng.integers(-60, 30, 3000)).astype(np.float32)
    c[::3] = -(a[::3] * b[::3])  # what is left is the product's rounding error
    found = floats.fma32(a, b, c)
    for x, y, z, got in zip(a, b, c, found, strict=True):
        exact = Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z))
        error = abs(Fraction(float(got)) - exact)
        for other in (np.nextafter(got, np.float32(np.inf)), np.nextafter(got, np.float32(-np.inf))):
            assert error <= abs(Fraction(float(other)) - exact)


def test_a_fused_product_of_double_precision_keeps_what_a_product_loses():
    x = np.array([1 + 2.0**-30])
    assert floats.fma64(x, x, np.array([-1.0]))[0] == 2.0**-29 + 2.0**-60


def test_ties_and_ends_of_fused_products():
    """Exact ties go to even, also below zero; infinities and overflow are what they are in float32."""
    one, ulp, large = np.float32(1), np.float32(2.0**-23), np.finfo(np.float32).max
    rows = [
        (one, one, ulp / 2, 1.0),
        (one + ulp, one, ulp / 2, 1 + 2.0**-22),
        (-one, one, -ulp / 2, -1.0),
        (one, one, np.float32(0), 1.0),
        (one, -one, one, 0.0),
        (large, np.float32(2), -large, float(large)),
        (large, large, np.float32(1), np.inf),
        (np.float32(np.inf), one, one, np.inf),
        (np.float32(2.0**-126), np.float32(0.5), np.float32(2.0**-149), 2.0**-127 + 2.0**-149),
    ]
    a, b, c, expected = (np.array(column) for column in zip(*rows, strict=True))
    assert floats.fma32(a, b, c).tolist() == expected.tolist()
    invalid = floats.fma32(np.array([np.inf], np.float32), np.zeros(1, np.float32), np.ones(1, np.float32))
    assert np.isnan(invalid).all()


def test_fused_products_of_double_precision_against_rationals():
    """Within one rounding of 53 bits, where the product and the third operand cancel, too."""
    rng = np.random.default_rng(7)
    a, b = rng.standard_normal((2, 500))
    c = rng.standard_normal(500) * 2.0 ** rng.integers(-60, 30, 500)
    c[::3] = -(a[::3] * b[::3])
    for x, y, z, got in zip(a, b, c, floats.fma64(a, b, c), strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        assert abs(Fraction(got) - exact) <= abs(exact) * Fraction(2) ** -53
    ends = floats.fma64(
        np.array([np.inf, 1e200, 2.0]), np.array([1.0, 1e200, 3.0]), np.array([1.0, 0, np.inf])
    )
    assert (ends == np.inf).all()


def test_bfloat16_is_that_of_torch():
    bits = np.random.default_rng(2).integers(0, 1 << 32, 20_000, dtype=np.uint32)
    values = bits.view(np.float32)
    values = values[~np.isnan(values)]
    expected = torch.from_numpy(values).to(torch.bfloat16)
    assert (floats.to_bfloat16(values) == expected.view(torch.uint16).numpy()).all()
    assert (floats.from_bfloat16(floats.to_bfloat16(values)) == expected.float().numpy()).all()
    assert floats.to_bfloat16(np.array([np.nan], np.float32))[0] == 0x7FFF


def test_e4m3_is_that_of_torch_and_saturates():
    values = (np.random.default_rng(3).standard_normal(20_000) * 100).astype(np.float32)
    expected = torch.from_numpy(np.clip(values, -448, 448)).to(torch.float8_e4m3fn)
    assert (floats.to_e4m3(values) == expected.view(torch.uint8).numpy()).all()
    every = np.arange(256, dtype=np.uint8)
    wide = torch.from_numpy(every).view(torch.float8_e4m3fn).float().numpy()
    assert np.array_equal(floats.from_e4m3(every), wide, equal_nan=True)
    finite = ~np.isnan(wide)
    assert (floats.to_e4m3(wide[finite]) == every[finite]).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_truncation_goes_toward_zero(sign: int):
    just_below = np.array([sign * (1 + 2.0**-23 - 2.0**-40)])
    assert floats.truncate32(just_below)[0] == sign * 1.0
    large = np.array([sign * 1e39, sign * np.inf, sign * 2.0**-150, sign * 1.0])
    limit = float(np.finfo(np.float32).max)
    assert floats.truncate32(large).tolist() == [sign * limit, sign * np.inf, 0.0, sign * 1.0]


def test_only_subnormal_numbers_are_flushed():
    edge = np.float32(2.0**-126)
    below = np.nextafter(edge, np.float32(0))
    values = np.array([edge, -edge, below, -below, 0, np.inf, -np.inf], np.float32)
    flushed = floats.flush(values)
    assert flushed.tolist() == [edge, -edge, 0, 0, 0, np.inf, -np.inf]
    assert np.signbit(flushed).tolist() == [False, True, False, True, False, False, True]
    assert np.isnan(floats.flush(np.array([np.nan], np.float32))).all()
