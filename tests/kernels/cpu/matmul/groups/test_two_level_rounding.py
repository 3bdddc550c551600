"""Weights rounded with two levels of scales: what is lost, beside one level and beside q4_0."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import round_to_two_levels
from kernels.cpu.matmul.records import RoundLevelsRecord
from tests.kernels.cpu.matmul.groups.one_level import one_level
from tests.kernels.tolerances import random

pytestmark = pytest.mark.cpu_kernels

BF16 = torch.bfloat16


def lost(weight: torch.Tensor, rounded: torch.Tensor) -> float:
    """The squared error, in squares of the weights."""
    return float((rounded.double() - weight.double()).square().sum() / weight.double().square().sum())


def q4_0(weight: torch.Tensor) -> torch.Tensor:
    """As llama.cpp rounds: groups of 32, the largest value becomes -8, the scale has 16 bits."""
    groups = weight.float().view(len(weight), -1, 32)
    extreme = groups.gather(-1, groups.abs().argmax(-1, keepdim=True))
    scale = (extreme / -8).half().float()
    return ((groups / scale + 8.5).floor().clamp(0, 15) - 8).mul(scale).flatten(1)


def levels_of(weight: torch.Tensor) -> torch.Tensor:
    """m * (p - z) of all inputs."""
    packed = round_to_two_levels(weight, None)
    scales = packed.params[:, 1].flatten()[: len(weight), None]
    return packed.values() / scales


@pytest.mark.parametrize("width", [576, 1024])
def test_less_is_lost_than_in_q4_0(width: int) -> None:
    """By a tenth, in 4.25 or 4.5 bits a weight for its 4.5. Floats as scales of parts lose a sixteenth less
    still, in 5 bits."""
    weight = random(96, width, dtype=BF16)
    ours, theirs = (
        lost(weight, rounded) for rounded in (round_to_two_levels(weight, None).values(), q4_0(weight))
    )
    assert 0.004 < ours < 0.9 * theirs
    assert ours < 1.07 * lost(weight, one_level(weight, None, 32).values())


def test_one_large_value_costs_its_neighbours_alone() -> None:
    """A part that it is not in keeps a scale of its own: less is lost than with one scale for the row."""
    weight = random(48, 1024, dtype=BF16)
    weight[:, 500] = 8.0
    left = torch.cat([weight[:, :480], weight[:, 512:]], 1)
    rounded = round_to_two_levels(weight, None).values()
    kept = torch.cat([rounded[:, :480], rounded[:, 512:]], 1)
    of_rows = (left.float() / (8 / 127)).round() * (8 / 127)
    assert lost(left, kept) < 0.02 and lost(left, of_rows) < lost(left, kept)


def test_all_levels_have_8_bits() -> None:
    """Whole numbers, of parts of one sign and of both."""
    weight = random(60, 300, dtype=BF16)
    weight[:20], weight[20:40] = weight[:20].abs(), -weight[20:40].abs()
    weight[::7] *= 1e-30
    levels = levels_of(weight)
    assert torch.allclose(levels, levels.round(), atol=1e-3) and 100 < float(levels.abs().max()) < 127.5


def test_what_8_bits_hold_in_16_steps_is_kept() -> None:
    """Rows of zeros, of one value, of steps around 0 or above it, of steps that differ from part to part."""
    weight = torch.zeros(6, 64, dtype=BF16)
    weight[1] = 0.75
    weight[2] = torch.arange(64).remainder(16).sub(8) * 0.5
    weight[3] = torch.arange(64).remainder(16) * 0.5
    weight[4, :32] = torch.arange(32).remainder(16).sub(7) * 15.0
    weight[4, 32:] = torch.arange(32).remainder(16).sub(5) * 2.0
    weight[5, 60] = -3.0
    values = round_to_two_levels(weight, None).values()
    assert torch.allclose(values, weight.float(), rtol=0.04, atol=0.01)
    assert torch.equal(values[0], weight[0].float())
    assert torch.allclose(values[[2, 4]], weight[[2, 4]].float(), rtol=1e-5, atol=0)


def test_python_gives_the_same() -> None:
    from kernels.cpu.matmul.groups.two_level_rounding import round_levels

    weight = random(5, 72, dtype=BF16)
    weight[0], weight[1] = 0.0, weight[1].abs()
    packed = round_to_two_levels(weight, None)
    assert packed.group_size == 32
    words, params = torch.zeros_like(packed.words), torch.zeros_like(packed.params)
    record = RoundLevelsRecord(
        weight=weight.data_ptr(),
        words=words.data_ptr(),
        width=72,
        groups=3,
        group_size=32,
        params=params.data_ptr(),
    )
    round_levels.reference(record, 0, 5, 0)
    assert torch.equal(words, packed.words) and torch.equal(params, packed.params)
