"""Masks with one bit per token."""

import numpy as np
import pytest
import torch

from kernels.ops.sampling.logits_processors import apply_bitmask
from tests.kernels.references.sampling import apply_bitmask_reference
from tests.kernels.sampling_inputs import tied_logits


@pytest.mark.parametrize("vocab_size", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("index", [[], [2], [4, 1], [0, 1, 2, 3, 4], [4, 3, 2, 1, 0]])
def test_equals_reference(vocab_size: int, index: list[int]) -> None:
    """No row, some, all in order and not; a vocabulary that does not fill its last word."""
    logits = tied_logits(5, vocab_size)
    words = np.random.default_rng(vocab_size).integers(-(2**31), 2**31, (len(index), -(-vocab_size // 32)))
    masks = torch.from_numpy(words.astype(np.int32))
    batch_index = torch.tensor(index, dtype=torch.int64)
    expected = apply_bitmask_reference(logits, batch_index, masks)
    apply_bitmask(logits, batch_index, masks)
    assert torch.equal(logits, expected)
