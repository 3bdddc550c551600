"""Masks of a bit per token: the compiled function against the formula, bit for bit."""

import math

import numpy as np
import pytest
import torch

from kernels.cpu.sampling.api import sampling_kernels
from kernels.ops.sampling.logits_processors import Bitmask, apply_bitmask
from tests.kernels.references.sampling import apply_bitmask_reference
from tests.kernels.sampling_inputs import tied_logits

KERNELS = sampling_kernels()
pytestmark = pytest.mark.skipif(KERNELS is None, reason="llvmlite is not installed")


def masks_of(rows: int, vocab_size: int) -> torch.Tensor:
    """[rows, ceil(V / 32)] int32: words of all tokens, of none, and of some; bits beyond V are set too."""
    rng = np.random.default_rng(vocab_size)
    shape = rows, -(-vocab_size // 32)
    words = rng.integers(-(2**31), 2**31, shape)
    words = np.where(rng.random(shape) < 0.3, 0, words)
    words = np.where(rng.random(shape) < 0.3, -1, words)
    return torch.from_numpy(words.astype(np.int32))


def masked(logits: torch.Tensor, users: list[int], masks: torch.Tensor) -> torch.Tensor:
    """By the compiled function."""
    assert KERNELS is not None
    result = logits.clone()
    KERNELS.mask(result, users, [Bitmask(line.numpy(), line.data_ptr()) for line in masks])
    return result


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 64, 100, 1031])
@pytest.mark.parametrize("users", [[], [2], [4, 1], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
def test_equals_reference(vocab_size: int, users: list[int]) -> None:
    """No row, some, all, in any order; a vocabulary that does not fill its last word; NaN and infinities."""
    logits = tied_logits(5, vocab_size)
    logits[:, ::7], logits[:, 1::11], logits[:, 2::13] = math.nan, math.inf, -0.0
    masks = masks_of(len(users), vocab_size)
    expected = apply_bitmask_reference(logits, torch.tensor(users, dtype=torch.int64), masks)
    found = masked(logits, users, masks)
    assert torch.equal(found.view(torch.int32), expected.view(torch.int32))


def test_vocabulary_of_a_model_among_threads(threads: int) -> None:
    logits = tied_logits(6, 151_936)
    users, masks = [5, 0, 1, 3], masks_of(4, 151_936)
    expected = logits.clone()
    apply_bitmask(expected, torch.tensor(users), masks)
    assert torch.equal(masked(logits, users, masks), expected)
