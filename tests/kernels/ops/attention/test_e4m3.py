"""Keys and values of 8 bits: what is stored of each number, and what is lost of it."""

import pytest
import torch

from kernels.ops.attention.e4m3 import E4M3, index_bytes, narrowed


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_too_large_is_held_and_nan_stays(dtype: torch.dtype):
    x = torch.tensor([448.0, 449.0, 480.0, 1e4, -1e4, torch.inf, -torch.inf, 0.0, -0.0, 2**-10], dtype=dtype)
    found = narrowed(x, E4M3).float()
    assert found.tolist() == [448, 448, 448, 448, -448, 448, -448, 0, 0, 0]
    assert torch.signbit(found).tolist() == torch.signbit(x).tolist()
    assert narrowed(torch.tensor([torch.nan], dtype=dtype), E4M3).float().isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_what_is_lost(dtype: torch.dtype):
    """At most 1/16 of a number from 2 ** -6 on, and 2 ** -10 below. Every number of 8 bits stays."""
    x = torch.linspace(-448, 448, 5001, dtype=torch.float64).to(dtype)
    x = torch.cat((x, torch.linspace(-(2**-6), 2**-6, 501).to(dtype)))
    lost = (narrowed(x, E4M3).double() - x.double()).abs()
    assert (lost <= (x.double().abs() / 16).clamp(min=2**-10)).all()
    codes = torch.arange(256, dtype=torch.uint8)
    codes = codes[codes & 127 != 127]
    assert torch.equal(narrowed(codes.view(E4M3).to(dtype), E4M3).view(torch.uint8), codes)


def test_other_dtypes_stay_what_they_are():
    x = torch.tensor([1000.0])
    assert narrowed(x, torch.float32) is x and index_bytes(x) is x
    eight = x.to(E4M3)
    assert index_bytes(eight).dtype == torch.uint8 and index_bytes(eight).data_ptr() == eight.data_ptr()
