"""Masks."""

import torch

from kernels.ops.logits.token_masks import (
    allow_tokens,
    allow_tokens_reference,
    forbid_tokens,
    forbid_tokens_reference,
)
from tests.kernels.sampling_inputs import tied_logits


def test_allow_equals_reference() -> None:
    """Some rows of a batch, a repeated id."""
    logits = tied_logits(5, 30)
    batch_index, token_ids = torch.tensor([4, 2]), torch.tensor([[3, 29, 3], [15, 0, 1]])
    expected = allow_tokens_reference(logits, batch_index, token_ids)
    allow_tokens(logits, batch_index, token_ids)
    assert torch.equal(logits, expected)


def test_forbid_equals_reference() -> None:
    """Active and inactive, also for the same token, in either order."""
    logits = tied_logits(5, 30)
    batch_index = torch.tensor([4, 2, 0])
    token_ids = torch.tensor([[3, 29, 3], [3, 29, 3], [15, 0, 1]])
    active = torch.tensor([[True, False, False], [False, True, True], [False, False, False]])
    expected = forbid_tokens_reference(logits, batch_index, token_ids, active)
    forbid_tokens(logits, batch_index, token_ids, active)
    assert torch.equal(logits, expected)


def test_a_row_is_never_left_without_a_token() -> None:
    """Row 0 would lose its last token: it stays as it was. Row 1 loses the same tokens and has another."""
    inf = torch.inf
    logits = torch.tensor([[1.0, -inf, 2.0], [1.0, 0.0, 2.0]])
    token_ids, active = torch.tensor([[0, 2], [0, 2]]), torch.ones(2, 2, dtype=torch.bool)
    expected = forbid_tokens_reference(logits, torch.arange(2), token_ids, active)
    forbid_tokens(logits, torch.arange(2), token_ids, active)
    assert torch.equal(logits, expected)
    assert torch.equal(logits, torch.tensor([[1.0, -inf, 2.0], [-inf, 0.0, -inf]]))


def test_nan_is_not_hidden() -> None:
    """A broken row is still broken afterwards, so that it ends in an error and not in a token."""
    logits = torch.tensor([[torch.nan, 1.0, 2.0]])
    forbid_tokens(logits, torch.tensor([0]), torch.tensor([[1]]), torch.tensor([[True]]))
    assert logits.isnan().any()
