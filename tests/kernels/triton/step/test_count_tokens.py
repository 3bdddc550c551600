"""Counts of prompt and output tokens on the device."""

import pytest
import torch

from kernels.triton.step.token_history import count_tokens
from tests.kernels.triton.references import count_tokens_reference

V = 70


@pytest.mark.parametrize(("length", "prompt_len"), [(0, 0), (1, 1), (1, 0), (600, 300)])
def test_counts(length: int, prompt_len: int, device: torch.device):
    """More than one program; repeats, in one slot of three; bits of all words, the sign's among them."""
    tokens = torch.randint(0, V, (length,), dtype=torch.int32, generator=torch.Generator().manual_seed(1))
    exact = torch.zeros(3, V, dtype=torch.int32), torch.zeros(3, 3, dtype=torch.int32)
    counts, prompt = (table.to(device).clone() for table in exact)
    count_tokens_reference(tokens.tolist(), prompt_len, 1, *exact)
    count_tokens(tokens.to(device), prompt_len, 1, counts, prompt)
    assert torch.equal(counts.cpu(), exact[0]) and torch.equal(prompt.cpu(), exact[1])


def test_counts_are_added(device: torch.device):
    """Two calls count as one with both lists; other slots stay."""
    counts = torch.zeros(2, V, dtype=torch.int32, device=device)
    prompt = torch.zeros(2, 3, dtype=torch.int32, device=device)
    for tokens in ([3, 3, 69], [3, 69]):
        count_tokens(torch.tensor(tokens, dtype=torch.int32, device=device), 0, 0, counts, prompt)
    assert counts[0].nonzero().flatten().tolist() == [3, 69]
    assert counts[0, [3, 69]].tolist() == [3, 2]
    assert not counts[1].any() and not prompt.any()


def test_prompt_tokens_are_bits(device: torch.device):
    """Token 31 is the sign bit of the first word; repeats set a bit once."""
    counts = torch.zeros(1, V, dtype=torch.int32, device=device)
    prompt = torch.zeros(1, 3, dtype=torch.int32, device=device)
    tokens = torch.tensor([31, 31, 32, 0], dtype=torch.int32, device=device)
    count_tokens(tokens, 4, 0, counts, prompt)
    assert prompt[0].tolist() == [-(1 << 31) + 1, 1, 0] and not counts.any()
