"""Writing rows into the words of a weight in groups: each word where the format's description says."""

import pytest
import torch

from kernels.cpu.matmul.groups.weight import GroupedWords

ROWS, INPUTS, SIZE = 150, 64, 32
GENERATOR = torch.Generator().manual_seed(5)
PLACES = {
    "neighbours that begin within a block": torch.arange(100) + 31,
    "whole blocks": torch.arange(96) + 48,
    "one": torch.tensor([149]),
    "gates and ups, in turns": torch.arange(100) // 2 + torch.arange(100) % 2 * 75,
    "backwards": torch.arange(60).flip(0) + 20,
    "anyhow": torch.randperm(ROWS, generator=GENERATOR)[:120],
}


@pytest.mark.parametrize("name", PLACES)
def test_rows_go_where_they_belong(name: str) -> None:
    """And no other row is touched."""
    rows = PLACES[name]
    groups = INPUTS // SIZE
    integers = torch.randint(16, (len(rows), groups, SIZE), generator=GENERATOR, dtype=torch.uint8)
    scales = torch.randn(len(rows), groups, generator=GENERATOR).half().float()
    zeros = torch.randint(64, (len(rows), groups), generator=GENERATOR, dtype=torch.uint8)
    words = GroupedWords.empty((ROWS, INPUTS), SIZE, groups)
    words.words.fill_(-1)
    expected = words.words.clone()
    words.put(rows, integers, scales, zeros)
    shifts = torch.tensor([0, 8, 16, 24, 4, 12, 20, 28])
    eights = (integers.long().view(len(rows), groups, -1, 8) << shifts).sum(-1)
    last = (scales.view(torch.int32).long() & 0xFFFFFFFF) | zeros.long()
    both = torch.cat((eights, last[:, :, None]), 2)
    for place, each in zip(rows.tolist(), both, strict=True):
        expected[place // 48, :, :, place % 48] = torch.where(each > 0x7FFFFFFF, each - (1 << 32), each)
    assert torch.equal(words.words, expected)
