"""The codes of float8 e4m3, against torch."""

import numpy as np
import torch

from kernels.cpu.isa.e4m3 import bfloat16_of, code_of

EDGES = [
    0.0,
    2**-10,
    1.5 * 2**-10,
    2**-9,
    2**-6,
    0.99 * 2**-6,
    1.0625,
    1.1875,
    447.9,
    448.0,
    463.9,
    465.0,
    1e9,
]


def test_every_code_is_a_bfloat16():
    """NaN among them."""
    codes = torch.arange(256, dtype=torch.uint8)
    bits = torch.tensor([bfloat16_of(code) for code in codes.tolist()], dtype=torch.int32).to(torch.int16)
    torch.testing.assert_close(
        bits.view(torch.bfloat16), codes.view(torch.float8_e4m3fn).bfloat16(), rtol=0, atol=0, equal_nan=True
    )


def test_the_nearest_code():
    """Ties to even, what is too large, infinity, NaN, and the sign of zero."""
    rng = np.random.default_rng(1)
    some = rng.standard_normal(2000) * 2.0 ** rng.integers(-13, 10, 2000)
    middles = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).double().numpy()
    ties = (middles[1:] + middles[:-1]) / 2
    values = np.concatenate([EDGES, some, ties]).astype(np.float32)
    values = np.concatenate([values, -values, np.array([np.inf, -np.inf, np.nan], np.float32)])
    expected = torch.from_numpy(values).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    assert [code_of(bits) for bits in values.view(np.uint32).tolist()] == expected.tolist()
