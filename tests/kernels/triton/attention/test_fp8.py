"""The formula of the KV cache of 8 bits."""

import pytest
import torch

from kernels.ops.attention.e4m3 import E4M3
from tests.kernels.triton.references import dequantize_reference, quantize_reference

ONE = torch.ones(1)


def roundtrip(x: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """x [T, K, D] through the cache [K, T, D], as float64."""
    stored = quantize_reference(x, scales)
    assert stored.dtype == E4M3
    return dequantize_reference(stored.transpose(0, 1), scales).transpose(0, 1)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 37.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_error(scale: float, dtype: torch.dtype):
    """At most 1/16 of a normal value, and half a step of the smallest ones below."""
    generator = torch.Generator().manual_seed(1)
    x = (torch.randn(50, 2, 16, generator=generator) * scale).to(dtype)
    scales = torch.tensor([scale, 2 * scale])
    error = (roundtrip(x, scales) - x.double()).abs()
    bound = torch.maximum(x.double().abs() / 16, scales.double()[:, None] * 2**-10)
    assert (error <= bound * (1 + 1e-6)).all()


def test_what_is_exact():
    """Numbers of the format come back; ties go to even."""
    exact = [0.0, 1.0, 1.125, 448.0, -448.0, 2**-6, 2**-9]
    x = torch.tensor([[[*exact, 1.0625, 1.1875]]])
    assert roundtrip(x, ONE)[0, 0].tolist() == [*exact, 1.0, 1.25]


def test_what_is_too_large_is_the_largest():
    x = torch.tensor([[[449.0, 1e6, torch.inf, -torch.inf, torch.nan]]])
    result = roundtrip(x, ONE)[0, 0]
    assert result[:4].tolist() == [448.0, 448.0, 448.0, -448.0] and result[4].isnan()


def test_a_scale_per_head():
    x = torch.full((1, 2, 4), 100.0)
    result = roundtrip(x, torch.tensor([1.0, 0.125]))
    assert result[0, 0].tolist() == [96.0] * 4 or result[0, 0].tolist() == [104.0] * 4
    assert result[0, 1].tolist() == [448 * 0.125] * 4  # 800 steps are more than there are
