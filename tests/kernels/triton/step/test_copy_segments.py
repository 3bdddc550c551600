"""Pieces of arrays, against loops over numbers."""

import pytest
import torch

from kernels.triton.step import copy_segments as module
from kernels.triton.step.copy_segments import copy_segments
from tests.kernels.triton.references import copy_segments_reference


def test_pieces_of_any_length(device: torch.device, monkeypatch):
    """None, one number, several turns of the loop; what lies between stays."""
    monkeypatch.setattr(module, "BLOCK", 4)
    source = torch.arange(100, dtype=torch.int32)
    pieces = [
        torch.tensor(column, dtype=torch.int32) for column in ([50, 3, 9, 70], [0, 5, 6, 20], [3, 1, 0, 13])
    ]
    expected = torch.full((40,), -1, dtype=torch.int32)
    written = expected.clone().to(device)
    copy_segments_reference(source, expected, *pieces)
    copy_segments(source.to(device), written, *(piece.to(device) for piece in pieces))
    assert written.tolist() == expected.tolist()
    assert written[:8].tolist() == [50, 51, 52, -1, -1, 3, -1, -1] and written[33:].tolist() == [-1] * 7


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
def test_a_piece_that_ends_where_both_arrays_do(count: int, device: torch.device, monkeypatch):
    """Around the numbers of a turn of the loop; nothing behind it, of whatever is beside in memory."""
    monkeypatch.setattr(module, "BLOCK", 4)
    source = torch.arange(30, dtype=torch.int32, device=device)
    target = torch.full((30,), -1, dtype=torch.int32, device=device)
    pieces = [torch.tensor([n], dtype=torch.int32, device=device) for n in (20 - count, 12 - count, count)]
    copy_segments(source[:20], target[:12], *pieces)
    assert target.tolist() == [*[-1] * (12 - count), *range(20 - count, 20), *[-1] * 18]


def test_no_pieces(device: torch.device):
    target, none = torch.full((3,), -1, dtype=torch.int32, device=device), torch.empty(0, device=device).int()
    copy_segments(target + 5, target, none, none, none)
    assert target.tolist() == [-1] * 3


def test_within_one_array(device: torch.device):
    """A row that begins as a copy of another."""
    rows = torch.arange(60, dtype=torch.int32, device=device).view(6, 10)
    pieces = [
        torch.tensor(column, dtype=torch.int32, device=device) for column in ([10, 10], [30, 50], [7, 3])
    ]
    expected = rows.cpu().clone()
    copy_segments_reference(rows.cpu(), expected, *(piece.cpu() for piece in pieces))
    copy_segments(rows, rows, *pieces)
    assert rows.tolist() == expected.tolist()
    assert rows[3].tolist() == [*range(10, 17), 37, 38, 39]
