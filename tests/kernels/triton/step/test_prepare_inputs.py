"""A step's inputs, gathered by the device, against loops over tokens."""

import numpy as np
import pytest
import torch

from kernels.triton.step import prepare_inputs as module
from kernels.triton.step.prepare_inputs import StepInputs, append_tokens, prepare_inputs
from tests.kernels.triton.references import prepare_inputs_reference

BLOCK_SIZE = 4


def outputs(padded: int, tokens: int, width: int, device: torch.device) -> StepInputs:
    """Filled with what must not stay."""
    longs = (torch.full((tokens,), -7, device=device) for _ in range(4))
    sizes = (padded + 1,), (padded,), (padded, width)
    return StepInputs(*longs, *(torch.full(size, -7, dtype=torch.int32, device=device) for size in sizes))


def test_inputs_of_a_step(device: torch.device, monkeypatch):
    """Decode, a prompt from its middle, one from its start; rows in any order; two rows of padding. Loops
    turn more than once."""
    monkeypatch.setattr(module, "BLOCK", 8)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 1000, (6, 40), generator=generator, dtype=torch.int32)
    blocks = torch.randperm(60, generator=generator).view(6, 10).to(torch.int32)
    rows, starts, counts = [4, 0, 2], [36, 5, 0], [1, 20, 9]
    out = outputs(5, 32, 10, device)
    columns = [
        torch.tensor([*column, 5, 3], dtype=torch.int32, device=device) for column in (rows, starts, counts)
    ]
    num_rows = torch.tensor([3], dtype=torch.int32, device=device)
    state = tokens.to(device), blocks.to(device), torch.arange(10, 16, dtype=torch.int32, device=device)
    prepare_inputs(*columns, num_rows, *state, BLOCK_SIZE, out)
    ids, positions, slots = prepare_inputs_reference(rows, starts, counts, tokens, blocks, BLOCK_SIZE)
    assert out.token_ids.tolist() == [*ids, 0, 0]
    assert out.positions.tolist() == [*positions, 0, 0]
    assert out.slots.tolist() == [*slots, -1, -1]
    assert out.prompts.tolist() == [14, *[10] * 20, *[12] * 9, 1, 1]
    assert out.query_starts.tolist() == [0, 1, 21, 30, 31, 32]
    assert out.lengths.tolist() == [37, 25, 9, 0, 0]
    for i, (row, length) in enumerate(zip(rows, (37, 25, 9), strict=True)):
        used = -(-length // BLOCK_SIZE)
        assert out.block_tables[i, :used].tolist() == blocks[row, :used].tolist()


def test_a_graph_of_more_rows_than_tokens_are_left(device: torch.device):
    """Rows that verify drafts have several tokens each: some rows of a graph of 6 tokens stay empty."""
    tokens = torch.arange(80, dtype=torch.int32, device=device).view(2, 40)
    blocks = torch.arange(20, dtype=torch.int32, device=device).view(2, 10)
    out = outputs(6, 6, 10, device)
    columns = [
        torch.tensor([*column, 0, 0, 0, 0], dtype=torch.int32, device=device)
        for column in ((0, 1), (3, 8), (4, 1))
    ]
    num_rows, prompts = (torch.tensor(x, dtype=torch.int32, device=device) for x in ([2], [3, 3]))
    prepare_inputs(*columns, num_rows, tokens, blocks, prompts, BLOCK_SIZE, out)
    assert out.token_ids.tolist() == [3, 4, 5, 6, 48, 0]
    assert out.slots.tolist()[-1] == -1
    assert out.query_starts.tolist() == [0, 4, 5, 6, 6, 6, 6]
    assert out.lengths.tolist() == [7, 9, 0, 0, 0, 0]


def test_a_graph_of_fewer_rows_than_tokens_are_left(device: torch.device, monkeypatch):
    """Its last row has the rest, whether there are other rows of padding or none; in more than one turn."""
    monkeypatch.setattr(module, "BLOCK", 8)
    tokens = torch.arange(80, dtype=torch.int32, device=device).view(2, 40)
    blocks = torch.arange(20, dtype=torch.int32, device=device).view(2, 10)
    prompts = torch.tensor([3, 4], dtype=torch.int32, device=device)
    for rows, starts in ((4, [0, 4, 5, 6, 24]), (3, [0, 4, 5, 24])):
        out = outputs(rows, 24, 10, device)
        columns = torch.tensor([[0, 1, 5, 5], [3, 8, 5, 5], [4, 1, 5, 5]], dtype=torch.int32, device=device)
        num_rows = torch.tensor([2], dtype=torch.int32, device=device)
        prepare_inputs(*columns[:, :rows].contiguous(), num_rows, tokens, blocks, prompts, BLOCK_SIZE, out)
        assert out.token_ids.tolist() == [3, 4, 5, 6, 48, *[0] * 19]
        assert out.positions.tolist() == [3, 4, 5, 6, 8, *[0] * 19]
        assert out.slots.tolist()[5:] == [-1] * 19 and out.prompts.tolist()[5:] == [1] * 19
        assert out.query_starts.tolist() == starts
        assert out.lengths.tolist() == [7, 9, *[0] * (rows - 2)]


def test_sampled_tokens_are_appended(device: torch.device):
    """-1 is no token; a full row stays full; what is no row has nothing behind the table changed."""
    state = torch.zeros(5, 3, dtype=torch.int32, device=device)
    all_lengths = torch.tensor([1, 2, 0, 3, 0], dtype=torch.int32, device=device)
    tokens, lengths = state[:4], all_lengths[:4]
    sampled, rows = torch.tensor([[7, 8, -1, 9, 5, 6], [1, 0, 2, 3, 4, 4]], device=device)
    append_tokens(sampled, rows, tokens, lengths)
    assert not state[4].any() and not all_lengths[4]
    assert tokens.tolist() == [[0, 8, 0], [0, 0, 7], [0, 0, 0], [0, 0, 0]]
    assert lengths.tolist() == [2, 3, 0, 3]


@pytest.mark.parametrize("seed", range(6))
def test_any_step(seed: int, device: torch.device, monkeypatch: pytest.MonkeyPatch):
    """Rows of one token and of many, of which several are the last of their blocks or fill the table; with
    rows and tokens of padding, or none."""
    monkeypatch.setattr(module, "BLOCK", 4)
    random = np.random.default_rng(seed)
    real, spare, width = int(random.integers(1, 7)), int(random.integers(0, 4)), 5
    longest = width * BLOCK_SIZE
    rows = random.permutation(8)[:real].tolist()
    ends = [int(random.choice([1, BLOCK_SIZE, BLOCK_SIZE + 1, longest - 1, longest])) for _ in rows]
    counts = [int(random.integers(1, end + 1)) if random.random() < 0.5 else 1 for end in ends]
    starts = [end - count for end, count in zip(ends, counts, strict=True)]
    tokens = torch.from_numpy(random.integers(0, 1000, (8, longest), dtype=np.int32))
    blocks = torch.from_numpy(random.permutation(8 * width).astype(np.int32).reshape(8, width))
    prompts = torch.from_numpy(random.integers(1, 99, 8, dtype=np.int32))
    out = outputs(real + spare, sum(counts) + spare, width, device)
    columns = [
        torch.tensor([*column, *[7] * spare], dtype=torch.int32, device=device)
        for column in (rows, starts, counts)
    ]
    num_rows = torch.tensor([real], dtype=torch.int32, device=device)
    state = (table.to(device) for table in (tokens, blocks, prompts))
    prepare_inputs(*columns, num_rows, *state, BLOCK_SIZE, out)
    ids, positions, slots = prepare_inputs_reference(rows, starts, counts, tokens, blocks, BLOCK_SIZE)
    assert out.token_ids.tolist() == [*ids, *[0] * spare]
    assert out.positions.tolist() == [*positions, *[0] * spare]
    assert out.slots.tolist() == [*slots, *[-1] * spare]
    of_rows = [int(prompts[row]) for row, count in zip(rows, counts, strict=True) for _ in range(count)]
    assert out.prompts.tolist() == [*of_rows, *[1] * spare]
    begins = np.cumsum([0, *counts, *[1] * spare]).tolist()
    assert out.query_starts.tolist() == begins and out.lengths.tolist() == [*ends, *[0] * spare]
    for i, (row, end) in enumerate(zip(rows, ends, strict=True)):
        used = -(-end // BLOCK_SIZE)
        assert out.block_tables[i, :used].tolist() == blocks[row, :used].tolist()


def test_a_step_of_padding_alone(device: torch.device):
    """As a graph is captured."""
    tokens = torch.full((2, 8), 9, dtype=torch.int32, device=device)
    blocks = torch.ones(2, 2, dtype=torch.int32, device=device)
    zeros, ones = (torch.full((3,), n, dtype=torch.int32, device=device) for n in (0, 1))
    out = outputs(3, 3, 2, device)
    prepare_inputs(zeros, zeros, ones, zeros[:1], tokens, blocks, ones, BLOCK_SIZE, out)
    assert out.token_ids.tolist() == out.positions.tolist() == [0, 0, 0]
    assert out.slots.tolist() == [-1, -1, -1] and out.prompts.tolist() == [1, 1, 1]
    assert out.query_starts.tolist() == [0, 1, 2, 3] and out.lengths.tolist() == [0, 0, 0]


def test_token_0_is_a_token(device: torch.device):
    """It is appended; more rows than a program has are, too."""
    count = module.BLOCK + 3
    tokens = torch.full((count, 2), -5, dtype=torch.int32, device=device)
    lengths = torch.zeros(count, dtype=torch.int32, device=device)
    sampled = torch.arange(count, device=device) - 1
    append_tokens(sampled, torch.arange(count, device=device).flip(0), tokens, lengths)
    assert tokens[:, 0].flip(0).tolist() == [-5, *range(count - 1)] and (tokens[:, 1] == -5).all()
    assert lengths.flip(0).tolist() == [0, *[1] * (count - 1)]


def test_nothing_is_appended_to_no_rows(device: torch.device):
    tokens = torch.full((2, 2), -5, dtype=torch.int32, device=device)
    lengths, none = torch.zeros(2, dtype=torch.int32, device=device), torch.empty(0, device=device).long()
    append_tokens(none, none, tokens, lengths)
    assert (tokens == -5).all() and not lengths.any()
