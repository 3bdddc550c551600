"""What finds a row's highest logits without sorting it: keys, the k-th of them, a lower bound, candidates."""

import math

import pytest
import torch
import triton.language as tl

from kernels.triton.sampling.candidates import kth_key, least_score, sort_key, write_candidates
from tests.kernels.sampling_inputs import smooth_logits, tied_logits
from tests.kernels.triton.probes import jit

WIDTH = 16
"""Of a tile of scores, so that some dozens of them are several tiles."""
ORDERED = [
    -math.inf, -3.4028234663852886e38, -2.0, -1.0000001192092896, -1.0, -1e-38, -1e-45, -0.0, 0.0, 1e-45,
    1e-38, 1.0, 1.0000001192092896, 2.0, 3.4028234663852886e38, math.inf,
]  # fmt: skip


@jit
def _keys(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, sort_key(tl.load(x + at)))


@jit
def _kth(scores, out, count, k, WIDTH: tl.constexpr):
    tl.store(out, kth_key(scores, count, k, WIDTH))


@jit
def _least(groups, numbers, out, num_groups, vocab_size, k, GROUPS: tl.constexpr):
    total, p, min_p = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2)
    top, heat = tl.load(numbers + 3), tl.load(numbers + 4)
    tl.store(out, least_score(groups, num_groups, total, vocab_size, k, p, min_p, top, heat, GROUPS))


@jit
def _write(
    logits, scores, ids, tops, least, out, vocab_size, num_tiles, TILE: tl.constexpr, ROOM: tl.constexpr
):
    count = write_candidates(logits, scores, ids, tops, vocab_size, num_tiles, tl.load(least), TILE, ROOM)
    tl.store(out, count)


def keys(x: torch.Tensor) -> torch.Tensor:
    """sort_key of x [N], N a power of two."""
    out = torch.zeros(len(x), dtype=torch.int64, device=x.device)
    _keys[(1,)](x, out, len(x))
    return out


def test_keys_are_in_the_order_of_numbers(device: torch.device):
    """From 0 to below 2 ** 32; both zeros are one number."""
    found = keys(torch.tensor(ORDERED, device=device)).tolist()
    assert found == sorted(found) and len(set(found)) == len(ORDERED) - 1
    assert found[ORDERED.index(0.0)] == found[ORDERED.index(0.0) + 1] == 1 << 31
    assert min(found) >= 0 and max(found) < 1 << 32


def test_keys_of_any_numbers_compare_as_they_do(device: torch.device):
    x = torch.randint(-(1 << 31), 1 << 31, (1024,), generator=torch.Generator().manual_seed(2))
    x = x.to(torch.int32).view(torch.float32)
    x = torch.where(x.isnan(), 0.5, x)
    found = keys(x.to(device)).cpu()
    assert torch.equal(found[:-1] < found[1:], x[:-1] < x[1:])


@pytest.mark.parametrize("count", [1, WIDTH - 1, WIDTH, WIDTH + 1])
@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
def test_the_kth_key(make, count: int, device: torch.device):
    """The first, the last and some in between, with equals; what stands behind the scores does not count."""
    scores = make(1, count)[0]
    behind = torch.cat((scores, torch.full((WIDTH,), 99.0))).to(device)
    ranked = scores.sort(descending=True).values
    padded = torch.zeros(64)
    padded[:count] = ranked
    expected = keys(padded.to(device)).tolist()
    for k in sorted({1, count // 2 + 1, count}):
        out = torch.zeros(1, dtype=torch.int64, device=device)
        _kth[(1,)](behind, out, count, k, WIDTH)
        assert out.item() == expected[k - 1], k


def least(
    groups: list[float], k: int = 0, p: float = 1.0, min_p: float = 0.0, total: float = 1.0,
    heat: float = 1.0, top: float = 0.0, vocab_size: int = 1000,
) -> float:  # fmt: skip
    """least_score of a row with these largest logits of groups, of which there are five at most."""
    room = torch.tensor([*groups, *[1e9] * (8 - len(groups))])
    numbers = torch.tensor([total, p, min_p, top, heat], dtype=torch.float64)
    out = torch.zeros(1, dtype=torch.float64)
    _least[(1,)](room, numbers, out, len(groups), vocab_size, k, 8)
    return out.item()


@pytest.mark.parametrize("k", [1, 2, 3, 4, 5])
def test_the_least_score_of_top_k_is_that_of_the_kth_group(k: int):
    """Negative ones and zeros among them; p and min-p do not count, since they count within the k."""
    groups = [-7.5, 3.25, 0.0, 3.25, -0.125]
    found = least(groups, k, p=0.5, min_p=0.9)
    assert found == sorted(groups, reverse=True)[k - 1]


def test_without_enough_groups_nothing_is_dropped():
    """Among fewer groups than k the k-th largest logit may be anywhere."""
    assert least([1.0, 2.0], k=3) == -math.inf
    assert least([1.0, 2.0]) == -math.inf
    assert least([1.0, 2.0], p=1.0, min_p=0.0, heat=3.0, top=5.0) == -math.inf


@pytest.mark.parametrize("heat", [0.25, 1.0, 7.0])
def test_the_least_scores_of_top_p_and_min_p(heat: float):
    """Below, a weight is less than (1 - p) of the whole row's, spread over all tokens; or less than min-p.
    The bound is a little lower than that, so that no rounding drops a token."""
    of_p = least([1.0], p=0.9, total=40.0, heat=heat, top=5.0, vocab_size=100)
    exact = 5.0 + heat * math.log(0.1 * 40.0 / 100)
    assert exact - 0.01 * heat < of_p < exact
    of_min_p = least([1.0], min_p=0.2, heat=heat, top=5.0)
    exact = 5.0 + heat * math.log(0.2)
    assert exact - 0.01 * heat < of_min_p < exact
    both = least([1.0], p=0.9, min_p=0.2, total=40.0, heat=heat, top=5.0, vocab_size=100)
    assert both == of_p  # min-p is of what top-p leaves: its bound alone need not hold


def test_a_p_of_zero_is_a_bound_too():
    """All of the row's weight may be dropped but for the first token's."""
    assert least([1.0], p=0.0, total=100.0, top=2.0, vocab_size=100) == pytest.approx(2.0, abs=0.01)


def written(logits: torch.Tensor, bound: float, tile: int, room: int) -> tuple[int, list[float], list[int]]:
    """The number of candidates, and what is written."""
    pieces = logits.cpu().split(tile)
    tops = torch.stack([piece.max() for piece in pieces]).to(logits.device)
    scores = torch.full((room + 4,), 77.0, device=logits.device)
    ids = torch.full((room + 4,), -7, dtype=torch.int32, device=logits.device)
    out = torch.zeros(1, dtype=torch.int32, device=logits.device)
    numbers = torch.tensor([bound], dtype=torch.float64, device=logits.device)
    _write[(1,)](logits, scores, ids, tops, numbers, out, len(logits), len(pieces), tile, room)
    assert (scores[room:] == 77).all() and (ids[room:] == -7).all()
    return int(out), scores.tolist(), ids.tolist()


@pytest.mark.parametrize("count", [1, 7, 8, 9, 40])
def test_candidates_are_in_the_order_of_their_ids(count: int, device: torch.device):
    """Those equal to the bound are among them; tiles whose largest logit is below it are skipped."""
    logits = tied_logits(1, count)[0].to(device)
    for bound in (-math.inf, 0.0, 0.5, 1.5, 99.0):
        number, scores, ids = written(logits, bound, 8, 64)
        expected = (logits.cpu().double() >= bound).nonzero()[:, 0].tolist()
        assert number == len(expected)
        assert ids[:number] == expected and ids[number:] == [-7] * (68 - number)
        assert scores[:number] == [logits[n].item() for n in expected]


def test_candidates_without_room_are_counted(device: torch.device):
    """And not written, not even in part behind the room's end."""
    logits = smooth_logits(1, 30)[0].to(device)
    number, scores, ids = written(logits, -math.inf, 8, 16)
    assert number == 30 and ids[:16] == list(range(16)) and scores[:16] == logits[:16].tolist()


def test_a_tile_is_skipped_by_its_largest_logit_alone(device: torch.device):
    """Where that is said to be less than it is, its logits are no candidates."""
    logits = torch.ones(16, device=device)
    out, ids = (torch.zeros(size, dtype=torch.int32, device=device) for size in (1, 32))
    tops, bound = (
        torch.tensor([0.5, 1.0], device=device),
        torch.tensor([1.0], dtype=torch.float64, device=device),
    )
    _write[(1,)](logits, torch.zeros(32, device=device), ids, tops, bound, out, 16, 2, 8, 32)
    assert out.item() == 8 and ids[:8].tolist() == list(range(8, 16))
