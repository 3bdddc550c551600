"""What each tile of a row of logits holds: largest, its id, mass, groups."""

import pytest
import torch

from kernels.triton.sampling.tile_stats import GROUP, TILE, TileStats, tile_stats
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

TEMPERATURE = torch.tensor([1.0, 0.0, 0.3])


def of_tiles(logits: torch.Tensor, width: int) -> list[torch.Tensor]:
    """Pieces of a row [V]."""
    return list(logits.split(width))


def check(logits: torch.Tensor, stats: TileStats) -> None:
    for row, scores in enumerate(logits):
        for tile, piece in enumerate(of_tiles(scores, TILE)):
            largest = piece.max()
            assert stats.largest[row, tile] == largest
            assert stats.best[row, tile] == tile * TILE + int((piece == largest).nonzero()[0])
            heat = TEMPERATURE[row].double()
            mass = torch.exp((piece.double() - largest.double()) / heat).sum() if heat else torch.tensor(0.0)
            if largest == -torch.inf:
                mass = torch.tensor(0.0)
            torch.testing.assert_close(stats.mass[row, tile].cpu(), mass.double(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
@pytest.mark.parametrize("vocab_size", [1, 7, TILE, TILE + 1])
def test_equals_torch(vocab_size: int, make, device: torch.device):
    """One token, a tile that is not full, a full one, and one more token."""
    logits = make(3, vocab_size)
    stats = tile_stats(logits.to(device), TEMPERATURE.to(device), groups=True)
    assert stats.largest.shape == (3, -(-vocab_size // TILE))
    check(logits, stats)
    assert stats.groups is not None
    for row, scores in enumerate(logits):
        groups = [piece.max() for piece in of_tiles(scores, GROUP)]
        assert stats.groups[row, : len(groups)].tolist() == groups
        assert (stats.groups[row, len(groups) :] == -torch.inf).all()


def test_broken_tiles(device: torch.device):
    """NaN and +inf make the tile's largest +inf, wherever they stand; others stay."""
    logits = smooth_logits(3, TILE + 9)
    logits[0, 4], logits[1, TILE + 1] = torch.nan, torch.inf
    logits[2, TILE:] = -torch.inf
    stats = tile_stats(logits.to(device), TEMPERATURE.to(device))
    broken = stats.largest.cpu() == torch.inf
    assert broken.tolist() == [[True, False], [False, True], [False, False]]
    assert stats.largest[2, 1] == -torch.inf and stats.mass[2, 1] == 0


def test_without_temperature_and_without_rows(device: torch.device):
    logits = smooth_logits(2, 50)
    assert tile_stats(logits.to(device), None).groups is None
    assert tile_stats(logits[:0].to(device), TEMPERATURE[:0].to(device)).largest.shape == (0, 1)


def test_rows_are_independent(device: torch.device):
    def stats(logits: torch.Tensor, temperature: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = tile_stats(logits, temperature)
        return found.largest, found.best, found.mass

    assert_rows_are_independent(stats, smooth_logits(4, 300).to(device), torch.ones(4, device=device))
