"""The n most probable tokens of each row against Python's sort."""

import pytest
import torch

from kernels.triton.sampling import logprobs as module
from kernels.triton.sampling.logprobs import top_n
from tests.kernels.references.sampling import ranking_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits


@pytest.mark.parametrize("make", [tied_logits, smooth_logits])
@pytest.mark.parametrize(("vocab_size", "n"), [(1, 1), (7, 7), (300, 1), (300, 20), (2100, 5)])
def test_ids(make, vocab_size: int, n: int, device: torch.device):
    """All tokens, more than there are groups of logits, fewer; equals at the limit."""
    logits = make(3, vocab_size)
    assert torch.equal(top_n(logits.to(device), n).cpu(), ranking_reference(logits, n))


def test_more_candidates_than_there_is_room_for(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Then the row itself is searched; in several tiles."""
    monkeypatch.setattr(module, "CANDIDATES", 16)
    monkeypatch.setattr(module, "WIDTH", 128)
    logits = tied_logits(2, 300)
    assert torch.equal(top_n(logits.to(device), 20).cpu(), ranking_reference(logits, 20))


def test_ids_of_a_row_with_nan_are_ids(device: torch.device):
    logits = smooth_logits(2, 50)
    logits[0] = torch.nan
    ids = top_n(logits.to(device), 4).cpu()
    assert torch.equal(ids[1:], ranking_reference(logits[1:], 4))
    assert ((ids >= 0) & (ids < 50)).all()


@pytest.mark.parametrize("n", [3, 8, 12])
def test_equals_before_greater_ones(n: int, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """As many of the equals as are left beside those above them, which come later; in several tiles."""
    monkeypatch.setattr(module, "WIDTH", 32)
    logits = torch.full((2, 100), -5.0)
    logits[:, 3:60:7] = 1.0
    logits[0, [61, 64, 80, 99]] = torch.tensor([4.0, 3.0, 6.0, 5.0])
    logits[1, [0, 62, 63]] = 2.0
    assert torch.equal(top_n(logits.to(device), n).cpu(), ranking_reference(logits, n))


def test_rows_that_are_searched_themselves(device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Several, none of whose logits are equal, beside one with candidates few enough; rows lie apart."""
    monkeypatch.setattr(module, "CANDIDATES", 16)
    monkeypatch.setattr(module, "WIDTH", 64)
    wide = smooth_logits(4, 330)
    wide[2] = -torch.arange(330.0)
    logits = wide[:, 10:310]
    assert torch.equal(top_n(logits.to(device), 20).cpu(), ranking_reference(logits, 20))


def test_no_rows(device: torch.device):
    assert top_n(torch.zeros(0, 5, device=device), 3).shape == (0, 3)


def test_as_many_as_may_be_asked_for(device: torch.device):
    logits = smooth_logits(1, 200)
    assert torch.equal(top_n(logits.to(device), module.MOST).cpu(), ranking_reference(logits, module.MOST))
    with pytest.raises(AssertionError):
        top_n(logits.to(device), module.MOST + 1)
    with pytest.raises(AssertionError):
        top_n(logits[:, :3].to(device), 4)
