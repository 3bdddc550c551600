"""Weights before normalization, in float32: the factor of a temperature, and what exp2 makes of it."""

import math

import pytest
import torch
import triton.language as tl

from kernels.triton.sampling.draws import factor_of, weights_of
from tests.kernels.triton.probes import jit


@jit
def _factors(temperature, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, factor_of(tl.load(temperature + at)))


@jit
def _weights(x, out, top, temperature, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    factor = factor_of(tl.load(temperature))
    tl.store(out + at, weights_of(tl.load(x + at), top, factor))


def weights(x: list[float], temperature: float, device: torch.device) -> torch.Tensor:
    """Of four logits, on the CPU."""
    out = torch.zeros(4, device=device)
    heat = torch.tensor([temperature], device=device)
    _weights[(1,)](torch.tensor(x, device=device), out, float(max(x)), heat, 4)
    return out.cpu()


def test_factors(device: torch.device):
    """log2(e) / T; of the smallest temperatures the largest factor, which is finite."""
    heats = torch.tensor([1.0, 0.5, 3.0, 1e30, 1e-30, 1e-38, 1e-39, 1e-45])
    out = torch.zeros(8, device=device)
    _factors[(1,)](heats.to(device), out, 8)
    exact = (math.log2(math.e) / heats.double()).clamp(max=3.0e38)
    torch.testing.assert_close(out.cpu().double(), exact, rtol=2e-7, atol=0)
    assert out.isfinite().all()


@pytest.mark.parametrize("temperature", [0.01, 0.7, 1.0, 50.0])
def test_weights_are_those_of_float64(temperature: float, device: torch.device):
    x = [2.5, 2.5 - temperature, 2.5 - 10 * temperature, 2.5 - 60 * temperature]
    exact = ((torch.tensor(x).double() - 2.5) / temperature).exp()
    torch.testing.assert_close(weights(x, temperature, device).double(), exact, rtol=3e-5, atol=0)


def test_the_largest_weighs_one_at_any_temperature(device: torch.device):
    for temperature in (1e-45, 1e-38, 1e-3, 1.0, 1e30):
        found = weights([3.0, -1.0, 3.0, -torch.inf], temperature, device)
        assert found[0] == found[2] == 1 and found[3] == 0


def test_next_to_no_temperature_only_the_largest_have_a_weight(device: torch.device):
    """Whatever is a little below them; a factor that overflows would make 0 * inf of them."""
    below = torch.tensor(3.0).nextafter(torch.tensor(0.0)).item()
    for temperature in (1e-40, 1e-45):
        assert weights([3.0, below, 0.0, 3.0], temperature, device).tolist() == [1.0, 0.0, 0.0, 1.0]


def test_a_temperature_without_bounds_makes_all_alike(device: torch.device):
    assert weights([1e3, -1e3, 0.0, 5.0], 1e38, device).tolist() == [1.0] * 4
