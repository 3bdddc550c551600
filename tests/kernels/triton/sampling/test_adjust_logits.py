"""Penalties, bias and mask in one pass against the three operations one after the other."""

import pytest
import torch

from kernels.triton.sampling.adjust_logits import Adjustments, adjust_logits
from tests.kernels.references.sampling import add_logit_bias_reference, penalties_reference
from tests.kernels.sampling_inputs import smooth_logits

SLOTS = 3


def bits(mask: torch.Tensor) -> torch.Tensor:
    """[S, V] bool -> [S, ceil(V / 32)] int32."""
    padded = torch.nn.functional.pad(mask, (0, -mask.shape[1] % 32)).view(len(mask), -1, 32).long()
    words = (padded << torch.arange(32)).sum(-1)
    return torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("vocab_size", [31, 64, 2077])
def test_all_at_once(vocab_size: int, masked: bool, device: torch.device):
    """Bit for bit. Rows and slots in an order of their own, rows that are left alone, a slot without bias."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = smooth_logits(5, vocab_size)
    logits[2, 3] = -torch.inf
    counts = torch.randint(0, 4, (SLOTS, vocab_size), generator=generator, dtype=torch.int32) // 2
    prompt = torch.rand(SLOTS, vocab_size, generator=generator) < 0.3
    allowed = torch.rand(SLOTS, vocab_size, generator=generator) < 0.8
    strengths = torch.tensor([[1.3, 0.7, -0.4], [1.0, 0.0, 0.0], [0.8, -0.3, 1.1]])
    bias_ids = torch.stack([torch.randperm(vocab_size, generator=generator)[:7] for _ in range(SLOTS)])
    bias = torch.randn(SLOTS, 7, generator=generator)
    num_biased = torch.tensor([7, 0, 4], dtype=torch.int32)
    batch_index, slots = torch.tensor([4, 2, 0]), torch.tensor([1, 2, 0])

    exact = logits.clone()
    for row, slot in zip(batch_index.tolist(), slots.tolist(), strict=True):
        where = torch.tensor([row])
        said = (prompt[slot] | (counts[slot] > 0)).nonzero()[:, 0][None]
        exact = penalties_reference(exact, where, said, counts[slot][said[0]][None], strengths[slot][None])
        few = int(num_biased[slot])
        exact = add_logit_bias_reference(exact, where, bias_ids[slot, :few][None], bias[slot, :few][None])
        if masked:
            exact[row, ~allowed[slot]] = -torch.inf

    tensors = strengths, counts, bits(prompt), bias_ids.int(), bias, num_biased
    mask = bits(allowed).to(device) if masked else None
    state = Adjustments(*(tensor.to(device) for tensor in tensors), mask)
    result = logits.to(device)
    adjust_logits(result, batch_index.to(device), slots.to(device), state)
    assert torch.equal(result.cpu(), exact)
