"""Weights rounded to 4 bits: what is lost, beside the nearest of whole ranges and beside q4_0."""

import pytest
import torch

from kernels.cpu.matmul.groups.records import RoundWeightRecord
from kernels.cpu.matmul.groups.weight import SIZES, round_in_groups
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16


def lost(weight: torch.Tensor, rounded: torch.Tensor) -> float:
    """The squared error, in squares of the weights."""
    return float((rounded.double() - weight.double()).square().sum() / weight.double().square().sum())


def of_whole_ranges(weight: torch.Tensor, size: int) -> torch.Tensor:
    """Nearest, with the scale from the smallest value of a group to the largest."""
    groups = weight.float().view(len(weight), -1, size)
    least, most = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scale = (most - least) / 15
    zero = (-least / scale).round()
    return (((groups / scale).round() + zero).clamp(0, 15) - zero).mul(scale).flatten(1)


def q4_0(weight: torch.Tensor) -> torch.Tensor:
    """As llama.cpp rounds: groups of 32, the largest value becomes -8, the scale has 16 bits."""
    groups = weight.float().view(len(weight), -1, 32)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = (extreme / -8).half().float()
    return ((groups / scale + 8.5).floor().clamp(0, 15) - 8).mul(scale).flatten(1)


@pytest.mark.parametrize("size", SIZES)
def test_less_is_lost_than_with_whole_ranges(size: int) -> None:
    """Of normal values, by a tenth."""
    weight = random(96, 1024, dtype=BF16)
    ours = lost(weight, round_in_groups(weight, None, size).values())
    assert 0.004 < ours < 0.93 * lost(weight, of_whole_ranges(weight, size))


def test_less_is_lost_than_in_q4_0() -> None:
    """In its groups of 32 by a fifth; in groups of 64, which take as many bits as q4_0, as much as there,
    within a twentieth."""
    weight = random(96, 1024, dtype=BF16)
    theirs = lost(weight, q4_0(weight))
    assert lost(weight, round_in_groups(weight, None, 32).values()) < 0.85 * theirs
    assert lost(weight, round_in_groups(weight, None, 64).values()) < 1.05 * theirs


def test_what_4_bits_hold_is_kept() -> None:
    """Rows of zeros, of one value, of 16 steps, of one value among zeros, and of a step above all zeros."""
    weight = torch.zeros(5, 64, dtype=BF16)
    weight[1] = 0.75
    weight[2] = torch.arange(64).remainder(16).sub(5) * 0.5
    weight[3, 60] = -3.0
    weight[4] = 1.0 + torch.arange(64).remainder(2)
    assert torch.allclose(round_in_groups(weight, None, 64).values(), weight.float(), rtol=2e-5, atol=0)


def test_python_gives_the_same() -> None:
    from kernels.cpu.matmul.groups.rounding import round_weight

    weight = random(5, 72, dtype=BF16)
    weight[0], weight[1] = 0.0, weight[1].abs()
    packed = round_in_groups(weight, None, 32)
    words = torch.zeros_like(packed.words)
    record = RoundWeightRecord(
        weight=weight.data_ptr(), words=words.data_ptr(), width=72, groups=3, group_size=32
    )
    round_weight.reference(record, 0, 5, 0)
    assert torch.equal(words, packed.words)
