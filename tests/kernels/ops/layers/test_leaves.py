"""The leaves of a product whose inputs ranks split: how many, and that ranks change no bit."""

import pytest
import torch

from kernels.ops.layers.leaves import LEAST_INPUTS, MOST, MULTIPLE, UNDIVIDED, count_leaves
from tests.kernels.references.matmul import tree_linear_reference
from tests.kernels.tolerances import assert_close, random


@pytest.mark.parametrize(
    ("inputs", "units", "multiple", "leaves"),
    [
        (4096, 32, 1, 4),  # heads of 128
        (8192, 64, 1, 8),
        (14336, 14336, 1, 8),
        (11008, 11008, 1, 8),  # leaves of 1376
        (11008, 11008, 128, 2),  # 86 groups
        (576, 9, 1, 1),
        (1536, 1536, 1, 2),  # two of any length
        (192, 6, 1, 2),
        (64, 4, 1, 2),
        (96, 4, 1, 1),  # words of packed weights end at 32
        (4096, 32, 2048, 2),
        (2048, 32, 1, 2),
        (4864, 4864, 1, 4),  # leaves of 1216
        (4864, 4864, 128, 2),
        (3072, 24, 1, 2),
        (3584, 28, 1, 2),
        (8192, 9, 1, 1),  # nine heads
        (1 << 20, 1 << 20, 1, 8),
        (4096, 1, 1, 1),
        (4096, 32, UNDIVIDED, 1),
    ],
)
def test_the_number_of_leaves(inputs: int, units: int, multiple: int, leaves: int):
    assert count_leaves(inputs, units, multiple) == leaves


def test_leaves_are_whole_units_of_some_length():
    for inputs in range(64, 10241, 32):
        for units in (1, 2, 3, 8, 12, inputs):
            for multiple in (1, 32, 128):
                leaves = count_leaves(inputs, units, multiple)
                assert leaves in (1, 2, 4, MOST) and units % leaves == 0
                if leaves > 1:
                    assert inputs % (leaves * multiple) == 0 and inputs // leaves >= (
                        LEAST_INPUTS if leaves > 2 else MULTIPLE
                    )


def test_ranks_change_no_bit():
    x, weight = random(5, 1024, dtype=torch.bfloat16), random(7, 1024, dtype=torch.bfloat16, seed=1)
    expected = tree_linear_reference(x, weight, 8)
    for ranks in (2, 4, 8):
        assert torch.equal(tree_linear_reference(x, weight, 8, ranks), expected)
    assert_close(expected, x.double() @ weight.double().T, 1e-5, 1e-4)
    assert not torch.equal(expected, tree_linear_reference(x, weight, 1)), "a chain has other bits"
