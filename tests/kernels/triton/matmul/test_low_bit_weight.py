"""Weights of few bits: what they take, and what rounding to them loses."""

import torch

from kernels.triton.matmul.low_bit_weight import (
    Code,
    empty_low_bits,
    low_bit_bytes,
    round_to_int4,
    round_to_int8,
)
from tests.kernels.tolerances import random


def test_bytes():
    """Of 4096 x 4096: 4.5 bits a value with groups of 64, 8 with a scale per row."""
    values = 4096 * 4096
    assert low_bit_bytes((4096, 4096), Code.INT4, 64) == values * 9 // 16
    assert low_bit_bytes((4096, 4096), Code.INT8, 4096) == values + 4096 * 4
    weight = empty_low_bits((70, 100), Code.E4M3, 100, torch.device("cpu"))
    assert weight.group_size == 128 and weight.params.shape == (2, 1, 64)


def test_rounding_to_8_bits():
    """Half a step at most; a row of zeros stays one."""
    weight = random(5, 300, dtype=torch.float32)
    weight[3] = 0
    integers, scales = round_to_int8(weight)
    assert integers.abs().amax(-1).tolist() == [127, 127, 127, 0, 127]
    assert ((integers * scales - weight).abs() <= 0.5001 * scales).all()


def test_rounding_to_4_bits():
    """Better than whole ranges, and held as it is; a group of zeros stays one; the last group is padded."""
    weight = random(70, 200, dtype=torch.bfloat16)
    weight[2, 32:64] = 0
    integers, scales, zeros = round_to_int4(weight, 32)
    assert integers.shape == (70, 224) and scales.shape == zeros.shape == (70, 7)
    held = empty_low_bits((70, 200), Code.INT4, 32, torch.device("cpu"))
    held.put(torch.arange(70), integers, scales, zeros)
    values = held.values()
    assert torch.equal(values[2, 32:64], torch.zeros(32))
    groups = weight.float()[:, :192].view(70, 6, 32)
    step = (groups.amax(-1, keepdim=True) - groups.amin(-1, keepdim=True)).clamp(min=1e-9) / 15
    least = (-groups.amin(-1, keepdim=True) / step).round()
    whole = (((groups / step).round() + least).clamp(0, 15) - least) * step
    found = (values[:, :192].view(70, 6, 32) - groups).square().sum()
    assert found < 0.95 * (whole - groups).square().sum()
