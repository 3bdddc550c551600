"""The order in which products sum: a definition by the weight's shape, and launch parameters beside it."""

import pytest
import torch

from kernels.triton.matmul.ranges import (
    LEAST_RANGE,
    MANY,
    MOST_RANGES,
    UNIT,
    choose_sizes,
    range_length,
    token_classes,
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
