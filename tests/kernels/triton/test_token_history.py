"""The kernels that remember what rows have said, and the one that looks there for bad words."""

import pytest
import torch

from kernels.triton.sampling import forbid_tokens as module
from kernels.triton.sampling.forbid_tokens import ANY, Prohibitions, forbid_tokens, forbid_tokens_reference
from kernels.triton.step.count_tokens import count_tokens, count_tokens_reference
from kernels.triton.step.record_tokens import History, record_tokens, record_tokens_reference
from tests.kernels.sampling_inputs import smooth_logits, tied_logits

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


def history_of(num_rows: int, room: int) -> History:
    """Every other row has a slot for counts, every third one for its output."""
    rows = torch.arange(num_rows, dtype=torch.int32)
    slots = torch.where(rows % 2 == 0, rows // 2, -1), torch.where(rows % 3 == 0, rows // 3, -1)
    counts, outputs = (torch.zeros(num_rows, width, dtype=torch.int32) for width in (V, room))
    return History(rows % 5, *slots, counts, outputs)


def test_records(device: torch.device):
    """Rows in an order of their own, more than one program has; no token; outputs that are full."""
    exact = history_of(200, 4)
    history = History(*(table.to(device).clone() for table in vars(exact).values()))
    generator = torch.Generator().manual_seed(2)
    for _ in range(3):
        rows = torch.randperm(200, generator=generator)[:150]
        tokens = torch.randint(-1, V, (150,), generator=generator)
        record_tokens_reference(tokens, rows, exact)
        record_tokens(tokens.to(device), rows.to(device), history)
        for name, table in vars(exact).items():
            assert torch.equal(getattr(history, name).cpu(), table), name


def prohibitions() -> Prohibitions:
    """Slot 0: words of one to three tokens, one of them twice, after 7 5 3; 1: everything is forbidden; 2:
    all but one are, and the stop tokens are that one; 3: nothing."""
    last, prefix = torch.zeros(4, V, dtype=torch.int32), torch.full((4, V, 2), ANY, dtype=torch.int32)
    last[0, :6] = torch.tensor([9, 8, 8, 6, 4, 1])
    prefix[0, 1] = torch.tensor([3, ANY])
    prefix[0, 2] = torch.tensor([4, ANY])
    prefix[0, 3] = torch.tensor([3, 5])
    prefix[0, 4] = torch.tensor([3, 7])
    last[1:3] = torch.arange(V)
    stops = torch.tensor([[2, 9, 2], [5, 6, 7], [V - 1, 0, 0], [0, 1, 2]], dtype=torch.int32)
    numbers = torch.tensor([[6, 2, 3, 5], [V, 0, 3, 5], [V - 1, 0, 1, 9], [0, 0, 0, 0]], dtype=torch.int32)
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
