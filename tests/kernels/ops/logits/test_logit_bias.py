"""Logit bias."""

import torch

from kernels.ops.logits.logit_bias import add_logit_bias, add_logit_bias_reference
from tests.kernels.sampling_inputs import tied_logits


def test_equals_reference() -> None:
    """The first entry repeats, as padding does, and is added once."""
    logits = tied_logits(5, 30)
    batch_index = torch.tensor([3, 1])
    token_ids = torch.tensor([[29, 4, 0], [7, 7, 7]])
    bias = torch.tensor([[1.5, -100.0, 0.25], [2.5, 2.5, 2.5]])
    expected = add_logit_bias_reference(logits, batch_index, token_ids, bias)
    add_logit_bias(logits, batch_index, token_ids, bias)
    assert torch.equal(logits, expected)
