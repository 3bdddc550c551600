"""The Triton kernels that choose tokens against the operations of kernels/ on the CPU, which are float64.

Tokens must be equal: a random number lies between the limits of float32 weights and of float64 ones once in
some 1e6 tokens, and the cases here are fixed.
"""

import pytest
import torch

from kernels.ops.sampling.choose import argmax as cpu_argmax
from kernels.ops.sampling.choose import inverse_cdf
from kernels.ops.sampling.filters import min_p, temperature_weights, top_k, top_p
from kernels.triton.sampling import filtered_sample as module
from kernels.triton.sampling.draws import Draws, Filters
from kernels.triton.sampling.filtered_sample import filtered_sample
from kernels.triton.sampling.logprobs import token_logprobs
from kernels.triton.sampling.sample import argmax, sample
from kernels.triton.sampling.tile_stats import tile_stats
from tests.kernels.references.sampling import (
    log_softmax_reference,
    philox4x32_reference,
    token_ranks_reference,
    uniform53_reference,
)
from tests.kernels.sampling_inputs import smooth_logits, tied_logits
from tests.kernels.triton.sampling.test_philox import uniforms

ROWS = 8
SEEDS = torch.tensor([0, 1, -1, 1 << 62, -(1 << 63), 12345, 77, 987654321])
TEMPERATURE = torch.tensor([0, 1, 0.7, 2, 1, 0.01, 5, 100])
TOP_K = torch.tensor([0, 0, 5, 0, 50, 0, 1, 300])
TOP_P = torch.tensor([1, 0.9, 1, 0.5, 0.9, 1, 0.99, 0.3])
MIN_P = torch.tensor([0, 0, 0, 0.1, 0, 0.2, 0, 0])


def draws_of(seeds: torch.Tensor, temperature: torch.Tensor, device: torch.device) -> Draws:
    """Row a is sequence a at position 3 a."""
    indexes = torch.arange(len(seeds), dtype=torch.int32, device=device)
    return Draws(temperature.to(device), seeds.to(device), indexes, 3 * indexes)


def uniform(draws: Draws, row: int) -> float:
    """By Python's integers."""
    seed = int(draws.seeds[row]) % (1 << 64)
    counter = int(draws.indexes[row]), int(draws.positions[row]), 0, 0
    return uniform53_reference(philox4x32_reference(counter, (seed % (1 << 32), seed >> 32)))


def expected(logits: torch.Tensor, draws: Draws, filters: Filters | None) -> torch.Tensor:
    """Row by row, on the CPU."""
    tokens = []
    for row, one in enumerate(logits.cpu().split(1)):
        heat = draws.temperature[row].cpu().double().view(1)
        if heat == 0:
            tokens.append(cpu_argmax(one))
            continue
        ids, scores = torch.arange(one.shape[1])[None], one
        k = int(filters.top_k[row]) if filters else 0
        if 0 < k < one.shape[1]:
            ids, scores = top_k(one, torch.tensor([k]), k)
        weights = temperature_weights(scores, one.amax(-1), heat)
        if filters and filters.top_p[row] < 1:
            weights = top_p(scores, weights, filters.top_p[row].cpu().double().view(1))
        if filters and filters.min_p[row] > 0:
            weights = min_p(weights, filters.min_p[row].cpu().double().view(1))
        drawn = inverse_cdf(weights, torch.tensor([uniform(draws, row)], dtype=torch.float64))
        tokens.append(torch.where(drawn < 0, drawn, ids[0, drawn.clamp(min=0)]))
    return torch.cat(tokens)


def broken_logits(vocab_size: int) -> torch.Tensor:
    """A row of everything that is no distribution, and one with a single token."""
    logits = smooth_logits(ROWS, vocab_size)
    logits[1], logits[2, 17 % vocab_size], logits[3, -1], logits[4] = (
        -torch.inf,
        torch.nan,
        torch.inf,
        -torch.inf,
    )
    logits[4, vocab_size // 2] = 1.0
    return logits


def check(logits: torch.Tensor, device: torch.device) -> None:
    """Greedy, unfiltered and filtered."""
    draws = draws_of(SEEDS, TEMPERATURE, device)
    filters = Filters(TOP_K.to(device, torch.int32), TOP_P.to(device), MIN_P.to(device))
    logits = logits.to(device)
    before = logits.clone()
    assert torch.equal(argmax(logits).cpu(), cpu_argmax(logits.cpu()))
    stats = tile_stats(logits, draws.temperature, groups=True)
    tokens = sample(logits, draws, stats)
    assert torch.equal(tokens.cpu(), expected(logits, draws, None))
    filtered_sample(logits, draws, filters, stats, tokens)
    assert torch.equal(tokens.cpu(), expected(logits, draws, filters))
    torch.testing.assert_close(logits, before, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
@pytest.mark.parametrize("vocab_size", [1, 7, 2100])
def test_tokens_are_those_of_the_cpu(vocab_size: int, make, device: torch.device):
    """One tile and several; equals, which the lower id wins, also across the edge of a filter."""
    check(make(ROWS, vocab_size, seed=vocab_size), device)


def test_rows_that_are_no_distribution(device: torch.device):
    check(broken_logits(2100), device)


def test_more_candidates_than_there_is_room_for(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Then the row itself is searched; in several tiles."""
    monkeypatch.setattr(module, "CANDIDATES", 16)
    monkeypatch.setattr(module, "WIDTH", 128)
    check(tied_logits(ROWS, 300), device)


def test_many_draws(device: torch.device):
    """From one row: tokens by the seed, and all of them come."""
    seeds = torch.arange(60)
    logits = smooth_logits(1, 9).expand(60, 9).contiguous().to(device)
    draws = draws_of(seeds, torch.full((60,), 4.0), device)
    tokens = sample(logits, draws)
    assert torch.equal(tokens.cpu(), expected(logits, draws, None))
    assert len(tokens.unique()) > 6


def test_company_changes_nothing(device: torch.device):
    """A row alone: the same token."""
    logits = smooth_logits(ROWS, 3000).to(device)
    draws = draws_of(SEEDS, TEMPERATURE, device)
    tokens = sample(logits, draws)
    for row in (1, 6):
        parts = [
            part[row : row + 1] for part in (draws.temperature, draws.seeds, draws.indexes, draws.positions)
        ]
        assert sample(logits[row : row + 1], Draws(*parts)) == tokens[row]


def test_uniform_numbers(device: torch.device):
    """Bit for bit those of Python's integers: seeds of 64 bits, indexes and positions of 31."""
    seeds = SEEDS.to(device)
    indexes = torch.tensor([0, 1, 2, 3, (1 << 31) - 1, 5, 6, 7], dtype=torch.int32, device=device)
    positions = torch.tensor([0, 5, 100, 70000, 9, (1 << 31) - 1, 1, 2], dtype=torch.int32, device=device)
    draws = Draws(torch.ones(8), seeds, indexes, positions)
    assert uniforms(seeds, indexes, positions).tolist() == [uniform(draws, row) for row in range(8)]


@pytest.mark.parametrize("vocab_size", [1, 300, 4099])
def test_logprobs_and_ranks(vocab_size: int, device: torch.device):
    """Of equals, of zeros of both signs, and of tokens that have no probability."""
    logits = tied_logits(3, vocab_size)
    tokens = torch.randint(0, vocab_size, (3, 5), generator=torch.Generator().manual_seed(0))
    logprobs, ranks = token_logprobs(logits.to(device), tokens.to(device))
    exact = log_softmax_reference(logits).gather(1, tokens)
    torch.testing.assert_close(logprobs.cpu().double(), exact, rtol=1e-7, atol=1e-7)
    assert torch.equal(ranks.cpu().long(), token_ranks_reference(logits, tokens))


def test_logprobs_of_rows_that_are_no_distribution(device: torch.device):
    logits = broken_logits(2100)
    tokens = torch.tensor([[5, 1050]]).expand(ROWS, 2).contiguous()
    logprobs, _ = token_logprobs(logits.to(device), tokens.to(device))
    assert logprobs[1:4].isnan().all()
    assert logprobs[4].tolist() == [-torch.inf, 0.0]
