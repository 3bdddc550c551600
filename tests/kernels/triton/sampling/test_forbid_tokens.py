"""Bad words and stop tokens that are not allowed yet."""

import pytest
import torch

from kernels.triton.sampling import forbid_tokens as module
from kernels.triton.sampling.forbid_tokens import ANY, Prohibitions, forbid_tokens, forbid_tokens_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

V = 70


def prohibitions() -> Prohibitions:
    """Slot 0: words of one to three tokens, one of them twice, after 7 5 3; 1: everything is forbidden; 2:
    all but one are, and the stop tokens are that one; 3: nothing."""
    last, prefix = torch.zeros(4, V, dtype=torch.int32), torch.full((4, 5, 2), ANY, dtype=torch.int32)
    last[0, :6] = torch.tensor([9, 8, 8, 6, 4, 1])
    prefix[0, 1] = torch.tensor([3, ANY])
    prefix[0, 2] = torch.tensor([4, ANY])
    prefix[0, 3] = torch.tensor([3, 5])
    prefix[0, 4] = torch.tensor([3, 7])
    last[1:3] = torch.arange(V)
    stops = torch.tensor([[2, 9, 2], [5, 6, 7], [V - 1, 0, 0], [0, 1, 2]], dtype=torch.int32)
    numbers = torch.tensor(
        [[6, 2, 3, 5, 5], [V, 0, 3, 5, 0], [V - 1, 0, 1, 9, 0], [0] * 5], dtype=torch.int32
    )
    return Prohibitions(last, prefix, torch.tensor([[7, 5, 3, 1]] * 4, dtype=torch.int32), stops, numbers)


@pytest.mark.parametrize("make", [smooth_logits, tied_logits])
def test_forbids(make, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Complete words, at the output's beginning too; lists that would leave nothing; several tiles."""
    monkeypatch.setattr(module, "ENTRIES", 4)
    monkeypatch.setattr(module, "WIDTH", 16)
    state = prohibitions()
    slots, positions = [0, 0, 0, 0, 1, 2, -1, 3], [3, 1, 0, 5, 2, 4, 3, 3]
    logits = make(len(slots), V)
    logits[3, 9] = torch.nan
    exact = forbid_tokens_reference(logits, slots, positions, state)
    result = logits.clone().to(device)
    columns = (torch.tensor(column, dtype=torch.int32, device=device) for column in (slots, positions))
    forbid_tokens(result, *columns, Prohibitions(*(table.to(device) for table in vars(state).values())))
    torch.testing.assert_close(result.cpu(), exact, rtol=0, atol=0, equal_nan=True)
    assert (exact[0, [9, 8, 6, 1, 2]] == -torch.inf).all() and exact[0, 4] == logits[0, 4]
    assert (exact[2, [9, 1]] == -torch.inf).all() and exact[2, 8] == logits[2, 8]
