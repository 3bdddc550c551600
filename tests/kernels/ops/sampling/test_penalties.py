"""Penalties: exact, since float32 arithmetic in a given order is."""

import pytest
import torch

from kernels.ops.sampling.logits_processors import penalties
from tests.kernels.references.sampling import penalties_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits


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


@pytest.mark.parametrize(("users", "length"), [(0, 4), (3, 0), (1, 1), (4, 200)])
def test_sizes(users: int, length: int) -> None:
    """No row, an empty history, one token, a history longer than the vocabulary."""
    generator = torch.Generator().manual_seed(users)
    logits = smooth_logits(4, 33)
    batch_index = torch.randperm(4, generator=generator)[:users]
    history = torch.randint(0, 33, (users, length), generator=generator)
    dense = torch.randint(0, 3, (users, 33), generator=generator, dtype=torch.int32)
    counts, strengths = dense.gather(1, history), torch.rand(users, 3, generator=generator) + 0.5
    expected = penalties_reference(logits, batch_index, history, counts, strengths)
    penalties(logits, batch_index, history, counts, strengths)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(
    ("strengths", "expected"),
    [
        ((2.0, 0.0, 0.0), [1.0, -4.0, 0.0, 5.0]),  # repetition divides what is positive, multiplies the rest
        ((1.0, 0.5, 0.0), [0.5, -2.5, 0.0, 5.0]),  # frequency: 3 times, once, never
        ((1.0, 0.0, 0.25), [1.75, -2.25, 0.0, 5.0]),  # presence: once for each that occurs in the output
    ],
)
def test_the_formula(strengths: tuple[float, float, float], expected: list[float]) -> None:
    """Tokens 0, 1, 2 are the history; 2 stands in the prompt alone; 3 is not in it."""
    logits = torch.tensor([[2.0, -2.0, 0.0, 5.0]])
    counts = torch.tensor([[3, 1, 0]], dtype=torch.int32)
    penalties(logits, torch.tensor([0]), torch.tensor([[0, 1, 2]]), counts, torch.tensor([strengths]))
    assert logits.tolist() == [expected]


def test_masked_tokens_stay_masked() -> None:
    logits = torch.full((1, 3), -torch.inf)
    logits[0, 2] = 1.0
    strengths, counts = torch.tensor([[0.5, -5.0, -5.0]]), torch.ones(1, 2, dtype=torch.int32)
    penalties(logits, torch.tensor([0]), torch.tensor([[0, 1]]), counts, strengths)
    assert logits.tolist() == [[-torch.inf, -torch.inf, 1.0]]
