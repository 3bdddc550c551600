"""The n most probable tokens of each row against Python's sort."""

import pytest
import torch

from kernels.ops.sampling.ranking import ranking_reference
from kernels.triton.sampling import top_n as module
from kernels.triton.sampling.top_n import top_n
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
