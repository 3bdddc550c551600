"""Logit bias."""

import pytest
import torch

from kernels.ops.sampling.logits_processors import add_logit_bias
from tests.kernels.references.sampling import add_logit_bias_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits


def test_equals_reference() -> None:
    """The first entry repeats, as padding does, and is added once."""
    logits = tied_logits(5, 30)
    batch_index = torch.tensor([3, 1])
    token_ids = torch.tensor([[29, 4, 0], [7, 7, 7]])
    bias = torch.tensor([[1.5, -100.0, 0.25], [2.5, 2.5, 2.5]])
    expected = add_logit_bias_reference(logits, batch_index, token_ids, bias)
    add_logit_bias(logits, batch_index, token_ids, bias)
    assert torch.equal(logits, expected)


@pytest.mark.parametrize(("users", "count"), [(0, 3), (2, 0), (1, 1), (5, 30)])
def test_sizes(users: int, count: int) -> None:
    """No row, no token, one, the whole vocabulary in any order."""
    generator = torch.Generator().manual_seed(users)
    logits = smooth_logits(5, 30)
    batch_index = torch.randperm(5, generator=generator)[:users]
    ids = [torch.randperm(30, generator=generator)[:count] for _ in range(users)]
    token_ids = torch.stack(ids) if users else torch.empty(0, count, dtype=torch.int64)
    bias = torch.randn(users, count, generator=generator)
    expected = add_logit_bias_reference(logits, batch_index, token_ids, bias)
    add_logit_bias(logits, batch_index, token_ids, bias)
    assert torch.equal(logits, expected)


def test_masked_tokens_stay_masked() -> None:
    """-inf plus a bias is -inf; a bias of -inf masks."""
    logits = torch.tensor([[-torch.inf, 1.0, 2.0]])
    add_logit_bias(logits, torch.tensor([0]), torch.tensor([[0, 1]]), torch.tensor([[100.0, -torch.inf]]))
    assert logits.tolist() == [[-torch.inf, -torch.inf, 2.0]]


def test_other_rows_stay() -> None:
    logits = smooth_logits(3, 9)
    before = logits.clone()
    add_logit_bias(logits, torch.tensor([1]), torch.tensor([[4]]), torch.tensor([[1.0]]))
    assert torch.equal(logits[[0, 2]], before[[0, 2]])
    assert (logits[1] != before[1]).nonzero().tolist() == [[4]]
