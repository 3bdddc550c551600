"""The order in which products sum: a definition by the weight's shape, and launch parameters beside it."""

import pytest
import torch

from kernels.triton.capabilities import CAPABILITIES
from kernels.triton.experts.tile_sizes import token_classes
from kernels.triton.matmul.ranges import (
    LEAST_RANGE,
    MANY,
    MOST_RANGES,
    UNIT,
    LinearSizes,
    SumOrder,
    choose_sizes,
    range_length,
    ranges_of,
)

SHAPES = [(6144, 4096), (4096, 14336), (28672, 4096), (896, 4864), (64, 100), (1, 1), (64, 1 << 17)]


@pytest.mark.parametrize(("features", "depth"), SHAPES)
def test_ranges(features: int, depth: int):
    """Long enough, few enough, and no more than fill a device."""
    length = range_length(features, depth)
    ranges = -(-depth // length)
    assert length % UNIT == 0 and ranges <= MOST_RANGES
    assert ranges == 1 or length >= LEAST_RANGE
    if features >= 64 * 256:
        assert ranges == 1


def test_ranges_of_a_model():
    """Of Llama-3-8B: the narrow weights are cut, the wide ones are not."""
    assert [-(-k // range_length(n, k)) for n, k in SHAPES[:3]] == [4, 4, 1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("processors", [0, 20, 132])
def test_a_class_of_tokens_has_one_choice(dtype: torch.dtype, processors: int):
    """A warm-up of token_classes() meets all parameters that any number of tokens takes."""
    for features, depth in SHAPES:
        ranges = -(-depth // range_length(features, depth))
        for most in (1, 20, 64, 100, 5000):
            met = {choose_sizes(t, features, ranges, dtype, processors) for t in token_classes(most)}
            used = {choose_sizes(t, features, ranges, dtype, processors) for t in range(1, most + 1)}
            assert used == met


def test_few_tokens_split():
    """Where programs would be fewer than processors; never where there is one range."""
    few, many = (choose_sizes(t, 4096, 4, torch.bfloat16, 132) for t in (1, MANY))
    assert few.splits and not many.splits
    assert not choose_sizes(1, 28672, 1, torch.bfloat16, 132).splits
    assert [choose_sizes(t, 4096, 4, torch.bfloat16, 132).tokens for t in (1, 17, 64, 65)] == [
        16,
        32,
        64,
        128,
    ]


@pytest.mark.parametrize(
    ("features", "depth", "length"),
    [
        (64, 1023, 1024),  # two ranges would be too short
        (64, 1024, 512),
        (64, 1025, 576),  # a multiple of what an iteration takes
        (64, 2047, 1024),
        (64, 2048, 512),
        (64, 8192, 512),
        (64, 1 << 17, 1 << 13),  # no more than 16
        (64 * 128, 1 << 14, 1 << 13),  # as many programs as are wanted
        (64 * 127 + 1, 1 << 14, 1 << 13),
        (64 * 127, 1 << 14, 1 << 12),
        (64 * 255, 4096, 2048),
        (64 * 255 + 1, 4096, 4096),
    ],
)
def test_lengths_of_ranges(features: int, depth: int, length: int):
    assert range_length(features, depth) == length


BF16, F32 = torch.bfloat16, torch.float32


@pytest.mark.parametrize(
    ("tokens", "dtype", "number", "sizes"),
    [
        (1, BF16, 90, (64, 16, 64, 4, 4)),
        (17, BF16, 80, (64, 32, 64, 4, 4)),
        (64, BF16, 120, (64, 64, 64, 4, 4)),
        (65, BF16, 90, (128, 128, 64, 8, 3)),
        (65, BF16, 100, (128, 128, 64, 8, 3)),
        (65, BF16, 80, (128, 64, 32, 8, 4)),
        (4000, torch.float16, 120, (128, 64, 32, 8, 4)),
        (16, F32, 90, (64, 16, 16, 4, 2)),
        (17, F32, 90, (64, 32, 16, 4, 2)),
        (4000, F32, 90, (64, 32, 16, 4, 2)),
    ],
)
def test_sizes_of_a_program(tokens: int, dtype: torch.dtype, number: int, sizes: tuple[int, ...]):
    """Features, tokens, depth, warps and stages: by what multiplies matrices."""
    assert choose_sizes(tokens, 4096, 1, dtype, 132, CAPABILITIES[number]) == LinearSizes(*sizes, False)


def test_eight_leaves_take_half_as_many_tokens():
    """Where a program sums all of them: their sums wait in registers."""
    for number, leaves, tokens in ((90, 8, 64), (100, 8, 64), (90, 4, 128), (80, 8, 64), (80, 0, 64)):
        assert choose_sizes(512, 4096, leaves, BF16, 132, CAPABILITIES[number], leaves).tokens == tokens


def test_ranges_that_ranks_share():
    """Ranges of rows that ranks divide are those of the whole weight; leaves follow from the inputs of this
    rank, and may end within an iteration."""
    whole = range_length(4096, 4096)
    assert ranges_of(4096, 4096, None) == ranges_of(512, 4096, SumOrder(4096)) == (whole, whole)
    assert ranges_of(512, 4096, None)[0] < whole
    for depth, leaves in ((14336, 8), (7168, 4), (1792, 1)):
        assert ranges_of(4096, depth, SumOrder(4096, leaves)) == (1792, 1792)
    assert ranges_of(4096, 11008, SumOrder(4096, 8)) == (1408, 1376)
    assert ranges_of(64, 64, SumOrder(64, 2)) == (128, 32)


def test_sizes_of_the_interpreter():
    """One program for all features, of 16 at least."""
    assert choose_sizes(1, 5, 1, F32, 0) == LinearSizes(16, 16, 64, 4, 1, False)
    assert choose_sizes(40, 100, 3, BF16, 0) == LinearSizes(128, 64, 64, 4, 1, True)


@pytest.mark.parametrize(
    ("tokens", "features", "ranges", "processors", "splits"),
    [
        (1, 640, 2, 5, False),  # ten programs, two for each processor
        (1, 640, 2, 6, True),
        (1, 641, 2, 6, True),
        (1, 768, 2, 6, False),
        (1, 640, 1, 132, False),
        (65, 1280, 2, 6, True),  # ten programs of 128 features
        (65, 1280, 2, 5, False),
        (128, 128, 16, 132, True),
        (129, 128, 16, 132, False),  # as many tokens as have one choice
    ],
)
def test_programs_that_sum_one_range(tokens: int, features: int, ranges: int, processors: int, splits: bool):
    assert choose_sizes(tokens, features, ranges, BF16, processors).splits is splits
