"""Penalties: exact, since float32 arithmetic in a given order is."""

import torch

from kernels.ops.logits.penalties import penalties, penalties_reference
from tests.kernels.sampling_inputs import tied_logits


def test_equals_reference() -> None:
    """Some rows of a batch, histories with repeats, positive, negative and masked logits."""
    generator = torch.Generator().manual_seed(1)
    logits = tied_logits(6, 40) * 1.7
    batch_index = torch.tensor([4, 0, 3])
    history = torch.randint(0, 40, (3, 25), generator=generator)
    dense = torch.randint(0, 4, (3, 40), generator=generator, dtype=torch.int32)
    counts = dense.gather(1, history)
    strengths = torch.tensor([[1.3, 0.0, 0.0], [0.7, -0.4, 1.1], [1.0, 0.9, -2.0]])
    expected = penalties_reference(logits, batch_index, history, counts, strengths)
    penalties(logits, batch_index, history, counts, strengths)
    assert torch.equal(logits, expected)


def test_neutral_changes_nothing() -> None:
    """Bit for bit: a user whose penalty is off is as if it were none."""
    logits = tied_logits(2, 9)
    before = logits.clone()
    history, counts = torch.arange(9).expand(2, 9), torch.ones(2, 9, dtype=torch.int32)
    penalties(logits, torch.arange(2), history, counts, torch.tensor([[1.0, 0.0, 0.0]] * 2))
    assert torch.equal(logits, before)
