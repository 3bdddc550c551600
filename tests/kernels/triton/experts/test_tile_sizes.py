"""Sizes of products by expert: classes of tokens, tiles, and what a product of them is launched with."""

import pytest
import torch

from kernels.triton.capabilities import CAPABILITIES
from kernels.triton.experts.tile_sizes import (
    LEAST_TILE,
    MANY_TOKENS,
    choose_grouped_sizes,
    choose_tile,
    class_pairs,
    largest_tile,
    most_tiles,
)
from kernels.triton.matmul.ranges import UNIT

CPU, META = torch.device("cpu"), torch.device("meta")


@pytest.mark.parametrize(
    ("tokens", "pairs"),
    [
        (0, 3),
        (1, 3),
        (2, 6),
        (3, 12),
        (4, 12),
        (5, 24),
        (MANY_TOKENS, 3 * MANY_TOKENS),
        (9999, 3 * MANY_TOKENS),
    ],
)
def test_classes_are_powers_of_two_up_to_a_limit(tokens: int, pairs: int):
    assert class_pairs(tokens, 3) == pairs


@pytest.mark.parametrize(
    ("pairs", "num_experts", "tiles"),
    [
        (0, 8, 0),
        (1, 8, 1),
        (8, 8, 8),
        (16, 1, 1),
        (17, 1, 2),
        (15, 8, 8),
        (24, 8, 9),
        (8 + 15, 8, 8),
        (8, 3, 3),
    ],
)
def test_the_most_tiles(pairs: int, num_experts: int, tiles: int):
    """Each expert with pairs has one that is not full: all but one pair are in full tiles."""
    assert most_tiles(pairs, num_experts, 16) == tiles


@pytest.mark.parametrize("seed", range(5))
def test_no_choice_has_more_tiles(seed: int):
    """Of random experts, some of which many tokens choose."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(30):
        num_experts, pairs = (int(torch.randint(1, most, (), generator=generator)) for most in (9, 200))
        owners = (torch.rand(pairs, generator=generator) ** 3 * num_experts).long()
        counts = owners.bincount(minlength=num_experts).tolist()
        for tile in (1, 16, 64):
            assert sum(-(-count // tile) for count in counts) <= most_tiles(pairs, num_experts, tile)


@pytest.mark.parametrize("number", sorted(CAPABILITIES))
def test_the_largest_tiles(number: int):
    """Of float32, which no matrix unit multiplies; of Hopper and of its successor, and of others."""
    capability = CAPABILITIES[number]
    assert largest_tile(torch.float32, capability) == 32
    halves = {largest_tile(dtype, capability) for dtype in (torch.float16, torch.bfloat16)}
    assert halves == {128 if number in (90, 100) else 64}


def test_a_tile_has_twice_the_pairs_of_an_even_choice():
    """16 at least, and no more than a program has registers for."""
    found = [choose_tile(tokens, 2, 8, 128, True) for tokens in (1, 32, 33, 64, 65, 128, 256, 512, 9999)]
    assert found == [16, 16, 32, 32, 64, 64, 128, 128, 128]
    assert choose_tile(9999, 2, 8, 32, True) == 32
    assert choose_tile(4096, 8, 256, 128, True) == 128  # 128 pairs each


def test_the_interpreter_has_few_programs():
    found = [choose_tile(tokens, 2, 8, 128, False) for tokens in (0, 1, 8, 9, 32, 500)]
    assert found == [LEAST_TILE, 16, 16, 32, 64, 64]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("features", [1, 16, 17, 70])
def test_the_interpreter_takes_all_features_at_a_time(features: int, dtype: torch.dtype):
    sizes = choose_grouped_sizes(9, 32, features, 2, dtype, CPU)
    assert sizes.features >= max(16, features) and sizes.features < 2 * max(16, features)
    assert (sizes.tokens, sizes.depth, sizes.splits) == (32, UNIT, True)
    assert not choose_grouped_sizes(9, 32, features, 1, dtype, CPU).splits


def test_programs_split_while_processors_are_without_work():
    """Two programs for each of 132."""
    for tiles, features, splits in ((11, 1536, False), (10, 1536, True), (263, 64, True), (264, 64, False)):
        assert choose_grouped_sizes(tiles, 16, features, 4, torch.bfloat16, META).splits == splits


def test_sizes_follow_from_the_tile():
    """Of float32 depth is less; the largest tile takes twice the features."""
    assert choose_grouped_sizes(1, 32, 640, 1, torch.float32, META).depth == 16
    sizes = [choose_grouped_sizes(1, tile, 640, 1, torch.float16, META) for tile in (16, 64, 128)]
    assert [(one.features, one.tokens, one.depth) for one in sizes] == [
        (64, 16, UNIT), (64, 64, UNIT), (128, 128, UNIT),
    ]  # fmt: skip
