"""The leaves of a product whose inputs ranks split: how many, and that ranks change no bit."""

import pytest
import torch

from kernels.ops.layers.leaves import LEAST_INPUTS, MOST, count_leaves
from tests.kernels.references.matmul import tree_linear_reference
from tests.kernels.tolerances import assert_close, random


@pytest.mark.parametrize(
    ("inputs", "units", "multiple", "leaves"),
    [
        (4096, 32, 1, 8),  # heads of 128
        (14336, 14336, 1, 8),
        (11008, 11008, 1, 8),  # leaves of 1376
        (11008, 11008, 128, 2),  # 86 groups
        (576, 9, 1, 1),  # nine heads
        (576, 576, 1, 2),  # leaves of 288
        (1536, 1536, 1, 4),  # leaves of 384, not of 192
        (1536, 12, 1, 4),
        (1536, 1536, 256, 2),
        (8960, 8960, 1, 8),
        (896, 14, 1, 2),
        (511, 511, 1, 1),
        (1 << 20, 1 << 20, 1, 8),
        (4096, 1, 1, 1),
        (4096, 32, 4096, 1),  # permuted inputs
    ],
)
def test_the_number_of_leaves(inputs: int, units: int, multiple: int, leaves: int):
    assert count_leaves(inputs, units, multiple) == leaves


def test_leaves_are_whole_units_of_some_length():
    for inputs in range(64, 4097, 32):
        for units in (1, 2, 3, 8, 12, inputs):
            for multiple in (1, 32, 128):
                leaves = count_leaves(inputs, units, multiple)
                assert leaves in (1, 2, 4, MOST) and units % leaves == 0
                if leaves > 1:
                    assert inputs % (leaves * multiple) == 0 and inputs // leaves >= LEAST_INPUTS


def test_ranks_change_no_bit():
    x, weight = random(5, 1024, dtype=torch.bfloat16), random(7, 1024, dtype=torch.bfloat16, seed=1)
    expected = tree_linear_reference(x, weight, 8)
    for ranks in (2, 4, 8):
        assert torch.equal(tree_linear_reference(x, weight, 8, ranks), expected)
    assert_close(expected, x.double() @ weight.double().T, 1e-5, 1e-4)
    assert not torch.equal(expected, tree_linear_reference(x, weight, 1)), "a chain has other bits"
