"""Log-probabilities and ranks of given tokens against float64, edges included."""

import pytest
import torch

from kernels.triton.sampling.logprobs import token_logprobs
from kernels.triton.sampling.tile_stats import TILE
from tests.kernels.references.sampling import log_softmax_reference, token_ranks_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import smooth_logits, tied_logits


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
@pytest.mark.parametrize(("vocab_size", "count"), [(1, 1), (2, 3), (TILE - 1, 2), (TILE + 1, 4)])
def test_equals_float64(vocab_size: int, count: int, make, device: torch.device):
    """The same token twice; the first and the last of the vocabulary."""
    logits = make(2, vocab_size)
    tokens = torch.randint(0, vocab_size, (2, count), generator=torch.Generator().manual_seed(count))
    tokens[:, 0], tokens[1, -1] = vocab_size - 1, 0
    logprobs, ranks = token_logprobs(logits.to(device), tokens.to(device))
    exact = log_softmax_reference(logits).gather(1, tokens)
    torch.testing.assert_close(logprobs.cpu().double(), exact, rtol=1e-7, atol=1e-7)
    assert torch.equal(ranks.cpu().long(), token_ranks_reference(logits, tokens))


@pytest.mark.parametrize("shift", [-1e4, 300.0])
def test_far_from_zero(shift: float, device: torch.device):
    """The largest logit is subtracted before anything is exponentiated."""
    logits, tokens = smooth_logits(2, 70) + shift, torch.tensor([[0, 5], [69, 3]])
    logprobs, _ = token_logprobs(logits.to(device), tokens.to(device))
    exact = log_softmax_reference(logits).gather(1, tokens)
    torch.testing.assert_close(logprobs.cpu().double(), exact, rtol=1e-6, atol=1e-6)


def test_nothing_asked(device: torch.device):
    logits = smooth_logits(3, 9).to(device)
    none = torch.empty(3, 0, dtype=torch.int64, device=device)
    logprobs, ranks = token_logprobs(logits, none)
    assert logprobs.shape == ranks.shape == (3, 0)


def test_rows_are_independent(device: torch.device):
    tokens = torch.randint(0, 400, (4, 3), generator=torch.Generator().manual_seed(1)).to(device)
    assert_rows_are_independent(token_logprobs, tied_logits(4, 400).to(device), tokens)
