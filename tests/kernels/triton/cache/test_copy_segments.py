"""Pieces of arrays, against loops over numbers."""

import torch

from kernels.triton.cache import copy_segments as module
from kernels.triton.cache.copy_segments import copy_segments, copy_segments_reference


def test_pieces_of_any_length(device: torch.device, monkeypatch):
    """None, one number, several turns of the loop; what lies between stays."""
    monkeypatch.setattr(module, "BLOCK", 4)
    source = torch.arange(100, dtype=torch.int32)
    pieces = [
        torch.tensor(column, dtype=torch.int32) for column in ([50, 3, 9, 70], [0, 5, 6, 20], [3, 1, 0, 13])
    ]
    expected = torch.full((40,), -1, dtype=torch.int32)
    written = expected.to(device)
    copy_segments_reference(source, expected, *pieces)
    copy_segments(source.to(device), written, *(piece.to(device) for piece in pieces))
    assert written.tolist() == expected.tolist()


def test_within_one_array(device: torch.device):
    """A row that begins as a copy of another."""
    rows = torch.arange(60, dtype=torch.int32, device=device).view(6, 10)
    pieces = [
        torch.tensor(column, dtype=torch.int32, device=device) for column in ([10, 10], [30, 50], [7, 3])
    ]
    expected = rows.cpu()
    copy_segments_reference(expected, expected, *(piece.cpu() for piece in pieces))
    copy_segments(rows, rows, *pieces)
    assert rows.tolist() == expected.tolist()
    assert rows[3].tolist() == [*range(10, 17), 37, 38, 39]
