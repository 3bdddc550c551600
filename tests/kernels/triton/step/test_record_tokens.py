"""Sampled tokens become part of their rows' history."""

import torch

from kernels.triton.step.token_history import History, record_tokens
from tests.kernels.triton.references import record_tokens_reference

V = 70


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


def test_no_rows(device: torch.device):
    history = History(*(table.to(device).clone() for table in vars(history_of(5, 4)).values()))
    none = torch.empty(0, dtype=torch.int64, device=device)
    record_tokens(none, none, history)
    assert torch.equal(history.positions.cpu(), history_of(5, 4).positions) and not history.counts.any()


def test_a_full_output_is_not_overrun(device: torch.device):
    """The last column is the room's end: more tokens are counted, and not written behind it."""
    zero = torch.zeros(1, dtype=torch.int32, device=device)
    counts = torch.zeros(1, V, dtype=torch.int32, device=device)
    outputs = torch.zeros(2, 3, dtype=torch.int32, device=device)
    history = History(zero + 2, zero.clone(), zero.clone(), counts, outputs)
    for token in (5, 6, 7):
        record_tokens(torch.tensor([token], device=device), zero.long(), history)
    assert outputs.tolist() == [[0, 0, 5], [0, 0, 0]]
    assert counts[0, 5:8].tolist() == [1, 1, 1] and history.positions.item() == 5
