"""typical-p, with the filters before it, against the operations of kernels/ on the CPU: the same is left."""

import pytest
import torch

from kernels.ops.sampling.filters import min_p, temperature_weights, top_k, top_p
from kernels.ops.sampling.filters import typical_p as cpu_typical_p
from kernels.triton.sampling import typical_p as module
from kernels.triton.sampling.draws import Filters
from kernels.triton.sampling.typical_p import typical_p
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

TEMPERATURE = torch.tensor([1, 0.7, 2, 0, 1, 1, 5, 1e-45])
TYPICAL = torch.tensor([0.9, 0.2, 1e-6, 0.5, 1, 0.6, 0.8, 0.5])
TOP_K = torch.tensor([0, 0, 9, 3, 3, 40, 300, 0], dtype=torch.int32)
TOP_P = torch.tensor([1, 0.9, 1, 0.5, 0.5, 0.8, 1, 1])
MIN_P = torch.tensor([0, 0, 0, 0.1, 0.1, 0.01, 0, 0])
NEUTRAL = [0, 1.0, 0.0]


def kept(logits: torch.Tensor, row: int) -> torch.Tensor:
    """Which tokens of a row [V] stay, on the CPU."""
    ids, scores = torch.arange(logits.shape[1])[None], logits[row : row + 1]
    largest, k = scores.amax(-1), int(TOP_K[row])
    if 0 < k < logits.shape[1]:
        ids, scores = top_k(scores, torch.tensor([k]), k)
    weights = temperature_weights(scores, largest, TEMPERATURE[row : row + 1].double())
    if TOP_P[row] < 1:
        weights = top_p(scores, weights, TOP_P[row : row + 1].double())
    weights = min_p(weights, MIN_P[row : row + 1].double())
    weights = cpu_typical_p(weights, TYPICAL[row : row + 1].double())
    return torch.zeros(logits.shape[1], dtype=torch.bool).scatter_(0, ids[0], weights[0] > 0)


def check(logits: torch.Tensor, device: torch.device) -> None:
    result = logits.clone().to(device)
    filters = Filters(*(column.to(device).clone() for column in (TOP_K, TOP_P, MIN_P)))
    typical_p(result, TEMPERATURE.to(device), filters, TYPICAL.to(device))
    for row, scores in enumerate(result.cpu()):
        left = [column[row].item() for column in vars(filters).values()]
        if TEMPERATURE[row] == 0 or TYPICAL[row] == 1:
            assert torch.equal(scores, logits[row])
            assert left == [column[row].item() for column in (TOP_K, TOP_P, MIN_P)]
        else:
            expected = torch.where(kept(logits, row), logits[row], -torch.inf)
            assert torch.equal(scores, expected)
            assert left == NEUTRAL


@pytest.mark.parametrize("make", [smooth_logits, tied_logits])
@pytest.mark.parametrize("vocab_size", [1, 7, 300])
def test_what_stays(make, vocab_size: int, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Several tiles; equals, of which the lower ids stay, at the edge of each filter."""
    monkeypatch.setattr(module, "WIDTH", 128)
    check(make(8, vocab_size, seed=vocab_size), device)


def test_uniform(device: torch.device):
    """All distances are 0: the first ids stay."""
    check(torch.zeros(8, 50), device)


def test_rows_that_are_no_distribution(device: torch.device):
    """They stay as they are: kernels.triton.sampling.sample says what is wrong with them."""
    logits = smooth_logits(3, 20)
    logits[0, 3], logits[1, 4], logits[2] = torch.nan, torch.inf, -torch.inf
    half, one = torch.full((3,), 0.5, device=device), torch.ones(3, device=device)
    filters = Filters(torch.ones(3, dtype=torch.int32, device=device), one.clone(), 0 * one)
    result = logits.clone().to(device)
    typical_p(result, one, filters, half)
    torch.testing.assert_close(result.cpu(), logits, rtol=0, atol=0, equal_nan=True)
