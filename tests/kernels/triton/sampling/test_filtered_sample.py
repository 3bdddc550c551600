"""Top-k, top-p and min-p without a sort: what is kept, weight by weight, and the draw from it.

Logits are integers and the factor is 1, so that weights are powers of two and every sum is exact: a token at
the edge of a filter is one at which the sum is the target.
"""

import pytest
import torch
import triton.language as tl

from kernels.triton.sampling.candidates import sort_key
from kernels.triton.sampling.draws import Filters
from kernels.triton.sampling.filtered_sample import filtered_sample, kept, mass_of, thresholds
from kernels.triton.sampling.sample import sample
from kernels.triton.sampling.tile_stats import tile_stats
from tests.kernels.sampling_inputs import tied_logits
from tests.kernels.triton.probes import jit
from tests.kernels.triton.sampling.test_sample import draws_of, expected

WIDTH = 8
"""Of a tile, so that a dozen candidates are two."""


@jit
def _mass(scores, bound, out, number, count, top, factor, WIDTH: tl.constexpr):
    least = tl.max(sort_key(tl.load(bound + tl.arange(0, 1))), 0)
    mass, found = mass_of(scores, count, top, factor, least, WIDTH)
    tl.store(out, mass)
    tl.store(number, found)


@jit
def _kept(scores, numbers, out, seen_out, count, k, top, factor, WIDTH: tl.constexpr):
    p, min_p, total = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    key, equals, above, target = thresholds(scores, count, k, p, top, factor, total, WIDTH)
    seen = tl.zeros([], tl.int32)
    for start in range(0, count, WIDTH):
        weights, seen = kept(
            scores, start, count, top, factor, key, equals, seen, above, target, min_p, WIDTH
        )
        tl.store(out + start + tl.arange(0, WIDTH), weights)
    tl.store(seen_out, seen)


def weights_of(scores: list[float]) -> list[float]:
    """Exact."""
    top = max(scores)
    return [2.0 ** (score - top) for score in scores]


def filtered(scores: list[float], k: int, p: float, min_p: float) -> list[float]:
    """The definition: ranks by score and then by id; the first k; of those, until p of their weight is
    reached; of those the weights of at least min_p times the largest."""
    weights = weights_of(scores)
    ranked = sorted(range(len(scores)), key=lambda n: (-scores[n], n))
    chosen = ranked[:k] if k else ranked
    whole, mass, result = sum(weights[n] for n in chosen), 0.0, [0.0] * len(scores)
    for n in chosen:
        if p < 1 and mass >= p * whole:
            break
        mass += weights[n]
        if weights[n] >= min_p:
            result[n] = weights[n]
    return result


def kept_of(scores: list[float], k: int, p: float, min_p: float, device: torch.device) -> list[float]:
    """By the kernel. Behind the candidates there is something large, which is none of them."""
    room = -(-len(scores) // WIDTH) * WIDTH
    x = torch.tensor([*scores, *[99.0] * WIDTH], device=device)
    numbers = torch.tensor([p, min_p, sum(weights_of(scores))], dtype=torch.float64, device=device)
    out = torch.full((room,), -1.0, dtype=torch.float64, device=device)
    seen = torch.zeros(1, dtype=torch.int32, device=device)
    _kept[(1,)](x, numbers, out, seen, len(scores), k, float(max(scores)), 1.0, WIDTH)
    assert not out[len(scores) :].any()
    return out[: len(scores)].tolist()


TIED = [0.0, -1.0, 0.0, -2.0, -1.0, -1.0, -3.0, 0.0, -1.0, -3.0, -2.0]
"""Weights of 1, 1/2, 1/4 and 1/8: three, four, two and two of them; in two tiles."""


@pytest.mark.parametrize("k", [0, 1, 2, 3, 4, 8, 11, 500])
def test_the_k_largest(k: int, device: torch.device):
    """Of equals those with the lowest ids, also where they are in two tiles; more than there are is all."""
    assert kept_of(TIED, k, 1.0, 0.0, device) == filtered(TIED, k, 1.0, 0.0)


SHARES = [n / 46 for n in (8, 9, 24, 29, 45)]
"""The weights are 46/8 together. At a multiple of 1/46 the sum of some tokens is the target itself."""


@pytest.mark.parametrize("p", [1e-9, *SHARES])
def test_the_smallest_set_that_reaches_a_share(p: float, device: torch.device):
    assert kept_of(TIED, 0, p, 0.0, device) == filtered(TIED, 0, p, 0.0)


@pytest.mark.parametrize("k", [2, 5, 6])
@pytest.mark.parametrize("p", [0.25, 0.75])
def test_a_share_of_what_the_k_largest_have(k: int, p: float, device: torch.device):
    """Not of the row; the limit of k may be among equals, of which some are left out."""
    assert kept_of(TIED, k, p, 0.0, device) == filtered(TIED, k, p, 0.0)


@pytest.mark.parametrize("min_p", [0.125, 0.126, 0.5, 1.0])
@pytest.mark.parametrize(("k", "p"), [(0, 1.0), (6, 0.6)])
def test_the_least_share_of_the_largest(k: int, p: float, min_p: float, device: torch.device):
    """A weight that is just as large stays."""
    assert kept_of(TIED, k, p, min_p, device) == filtered(TIED, k, p, min_p)


@pytest.mark.parametrize(
    "scores", [[3.0], [0.0] * 9, [-5.0, -4.0, -3.0, -2.0, -1.0, 0.0, 1.0, 2.0, 3.0]], ids=len
)
@pytest.mark.parametrize(("k", "p", "min_p"), [(1, 1.0, 0.0), (4, 0.5, 0.0), (9, 0.99, 0.5)])
def test_other_rows(scores: list[float], k: int, p: float, min_p: float, device: torch.device):
    """One token; all alike; none alike, the best one last."""
    assert kept_of(scores, k, p, min_p, device) == filtered(scores, k, p, min_p)


def test_tokens_without_any_weight_are_not_kept(device: torch.device):
    """Logits of -inf, also where k is more than are left."""
    scores = [0.0, -torch.inf, -1.0, -torch.inf]
    assert kept_of(scores, 3, 1.0, 0.0, device) == [1.0, 0.0, 0.5, 0.0]
    assert kept_of(scores, 0, 0.999, 0.0, device) == [1.0, 0.0, 0.5, 0.0]


@pytest.mark.parametrize("bound", [1.0, 0.0, -0.5, -1.0, -3.0, -torch.inf])
def test_the_weight_above_a_score(bound: float, device: torch.device):
    """With those that equal it; what is behind the candidates does not count."""
    x = torch.tensor([*TIED, *[0.0] * WIDTH], device=device)
    out = torch.zeros(1, dtype=torch.float64, device=device)
    number = torch.zeros(1, dtype=torch.int32, device=device)
    _mass[(1,)](x, torch.tensor([bound], device=device), out, number, len(TIED), 0.0, 1.0, WIDTH)
    above = [weight for score, weight in zip(TIED, weights_of(TIED), strict=True) if score >= bound]
    assert (out.item(), number.item()) == (sum(above), len(above))


def drawn(
    logits: torch.Tensor, temperature: list[float], filters: list[list[float]], device: torch.device
) -> tuple[list[int], list[int]]:
    """Tokens of the kernels, and of the operations of the CPU. filters: top_k, top_p and min_p."""
    draws = draws_of(torch.arange(len(logits)) * 7919 + 5, torch.tensor(temperature), device)
    k, p, min_p = filters
    columns = torch.tensor(k, dtype=torch.int32), torch.tensor(p), torch.tensor(min_p)
    there, moved = logits.to(device), Filters(*(column.to(device) for column in columns))
    stats = tile_stats(there, draws.temperature, groups=True)
    tokens = sample(there, draws, stats)
    filtered_sample(there, draws, moved, stats, tokens)
    return tokens.tolist(), expected(logits, draws, moved).tolist()


def test_draws_at_the_edges_of_each_filter(device: torch.device):
    """k around the number of tokens; shares of almost nothing and of almost all; all filters together."""
    k = [1, 39, 40, 41, 0, 0, 0, 40]
    p = [1, 1, 1, 1, 1e-6, 0.999999, 1, 0.99]
    min_p = [0, 0, 0, 0, 0, 0, 1, 0.001]
    logits = tied_logits(len(k), 40, seed=3)
    found, exact = drawn(logits, [1.5] * len(k), [k, p, min_p], device)
    assert found == exact and len(set(found)) > 3


def test_rows_without_filters_keep_their_token(device: torch.device):
    """Also greedy ones, for which filters mean nothing, and those that are broken."""
    logits = tied_logits(5, 40)
    logits[3, 7], logits[4] = torch.nan, -torch.inf
    draws = draws_of(torch.arange(5), torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0]), device)
    filters = Filters(
        torch.tensor([0, 3, 0, 3, 3], dtype=torch.int32, device=device),
        torch.tensor([1, 0.1, 0.5, 0.5, 0.5], device=device),
        torch.tensor([0, 0.5, 0.5, 0.0, 0.0], device=device),
    )
    stats = tile_stats(logits.to(device), draws.temperature, groups=True)
    tokens = torch.full((5,), -77, dtype=torch.int64, device=device)
    filtered_sample(logits.to(device), draws, filters, stats, tokens)
    assert tokens.tolist() == [-77] * 5


def test_no_rows(device: torch.device):
    logits, none = torch.empty(0, 9, device=device), torch.empty(0, device=device)
    draws = draws_of(none.long().cpu(), none.cpu(), device)
    out = torch.empty(0, dtype=torch.int64, device=device)
    stats = tile_stats(logits, draws.temperature, groups=True)
    filtered_sample(logits, draws, Filters(none.int(), none, none), stats, out)
    assert out.shape == (0,)


def test_a_row_is_one_of_a_wider_tensor(device: torch.device):
    """Its neighbours in memory, larger than any logit, are no tokens."""
    wide = torch.full((2, 60), 50.0)
    wide[:, :40] = tied_logits(2, 40)
    found, exact = drawn(wide[:, :40], [1.0] * 2, [[0, 5], [0.9, 1.0], [0.0, 0.1]], device)
    assert found == exact


def test_cold_and_hot_rows(device: torch.device):
    """A temperature at which only the largest has a weight, and one at which all have the same."""
    logits = tied_logits(4, 40, seed=9)
    filters = [[0, 5, 0, 7], [0.9, 1.0, 0.5, 0.3], [0.0, 0.1, 0.2, 0.0]]
    found, exact = drawn(logits, [1e-30, 1e-45, 1e4, 1e30], filters, device)
    assert found == exact
    assert all(logits[row, found[row]] == logits[row].max() for row in (0, 1))
