"""Attention over latents against float64; and its bits, which depend on a token's position and context
alone."""

from dataclasses import dataclass

import pytest
import torch

from kernels.triton.attention import latent_attention as kernels
from kernels.triton.attention.latent_attention import latent_attention, store_latents
from kernels.triton.attention.paged_attention import PagedBatch
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where

HEADS, RANK, ROTARY, BLOCK = 18, 40, 8, 16
"""Two programs for the heads of a token, of which the second has two."""
SCALE = 0.3
CPU = torch.device("cpu")
ROWS = [(0, 3), (33, 1), (40, 4), (5, 1)]
"""Positions that are in the cache, and tokens of the step."""
pytestmark = pytest.mark.usefixtures("shorter_chunks")


@pytest.fixture
def shorter_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 positions."""
    for module in ("merge_chunks", "latent_attention", "attention_sizes"):
        monkeypatch.setattr(f"kernels.triton.attention.{module}.CHUNK", 32)


@dataclass(frozen=True)
class Case:
    """Rows whose blocks are shuffled. What no row has in the cache is NaN."""

    query: torch.Tensor  # [T, H, R + P]
    cache: torch.Tensor  # [B, 1, S, R + P]
    tables: torch.Tensor  # [N, blocks] int32

    def batch(self, rows: list[tuple[int, int]], first: int = 0) -> PagedBatch:
        """rows: as ROWS; first: the first of the tables that they have."""
        counts, lengths = [count for _, count in rows], [sum(row) for row in rows]
        starts = torch.tensor([0, *counts]).cumsum(0).to(torch.int32)
        tables = self.tables[first : first + len(rows)].contiguous()
        place = self.query.device
        on_device = (part.to(place) for part in (starts, torch.tensor(lengths, dtype=torch.int32), tables))
        return PagedBatch(*on_device, 96)

    def exact(self) -> torch.Tensor:
        """In float64, token by token."""
        results, token = [], 0
        for table, (context, count) in zip(self.tables.tolist(), ROWS, strict=True):
            kept = self.cache.cpu()[table].reshape(-1, RANK + ROTARY).double()
            for position in range(context, context + count):
                scores = SCALE * self.query[token].cpu().double() @ kept[: position + 1].T
                results.append(scores.softmax(-1) @ kept[: position + 1, :RANK])
                token += 1
        return torch.stack(results)


def make_case(dtype: torch.dtype, device: torch.device = CPU) -> Case:
    most = 4
    ids = torch.randperm(most * len(ROWS), generator=torch.Generator().manual_seed(3))
    tables = ids.view(len(ROWS), most).to(torch.int32)
    cache = torch.full((len(ids), 1, BLOCK, RANK + ROTARY), torch.nan, dtype=dtype)
    for number, (table, row) in enumerate(zip(tables.tolist(), ROWS, strict=True)):
        length = sum(row)
        latents = random(length, RANK + ROTARY, dtype=dtype, seed=number)
        slots = torch.tensor([table[p // BLOCK] * BLOCK + p % BLOCK for p in range(length)])
        cache.view(-1, RANK + ROTARY)[slots] = latents
    tokens = sum(count for _, count in ROWS)
    query = random(tokens, HEADS + 1, RANK + ROTARY, dtype=dtype, seed=9)[:, :HEADS]
    return Case(query.to(device), cache.to(device), tables)


@pytest.mark.parametrize("splits", [1, 3])
def test_equals_float64(where: Where, splits: int):
    """Rows that decode and pieces of prompts; programs that share a token's chunks, or do not."""
    case = make_case(where.dtype, where.device)
    result = latent_attention(case.query, case.cache, case.batch(ROWS), SCALE, RANK, splits)
    assert_close(result.cpu(), case.exact(), 4 * where.absolute, 4 * where.relative)


@pytest.mark.parametrize("splits", [1, 2, 3])
def test_one_arithmetic(splits: int):
    """A token alone, in pieces of its prompt, and beside others, with any number of programs."""
    case = make_case(torch.float32)
    whole = latent_attention(case.query, case.cache, case.batch(ROWS), SCALE, RANK, 1)
    for first, count in ((0, 4), (0, 1), (1, 2), (3, 1)):  # of the third row
        query = case.query[4 + first : 4 + first + count]
        batch = case.batch([(40 + first, count)], 2)
        piece = latent_attention(query, case.cache, batch, SCALE, RANK, splits)
        assert torch.equal(piece, whole[4 + first : 4 + first + count])


def test_chunks_of_another_length_are_found(monkeypatch: pytest.MonkeyPatch):
    """A planted bug."""
    case = make_case(torch.float32)
    whole = latent_attention(case.query, case.cache, case.batch(ROWS), SCALE, RANK, 1)
    monkeypatch.setattr(kernels, "CHUNK", 16)
    assert not torch.equal(latent_attention(case.query, case.cache, case.batch(ROWS), SCALE, RANK, 1), whole)


def test_rows_of_padding_see_nothing(device: torch.device):
    """They have a token, or some, and a length of 0: their results are zeros, and those of others stay."""
    case = make_case(torch.float32, device)
    batch = case.batch([(33, 1), (-1, 1), (-3, 3)], 1)
    for splits in (1, 2):
        result = latent_attention(case.query[:5], case.cache, batch, SCALE, RANK, splits)
        assert not result[1:].any() and result[0].isfinite().all()


def test_store(device: torch.device):
    """Tokens of padding store nothing."""
    cache = torch.zeros(3, 1, BLOCK, RANK + ROTARY, device=device)
    latents = random(3, 2, RANK + ROTARY, dtype=torch.float32).to(device)[:, 1]
    store_latents(latents, torch.tensor([33, -1, 4], device=device), cache)
    rows = cache.view(-1, RANK + ROTARY)
    assert torch.equal(rows[33], latents[0]) and torch.equal(rows[4], latents[2])
    rows[[33, 4]] = 0
    assert not rows.any()


@pytest.mark.parametrize(
    ("heads", "rank", "rotary", "block"), [(1, 16, 4, 1), (16, 24, 2, 3), (17, 64, 16, 32)]
)
@pytest.mark.parametrize("splits", [1, 2])
def test_shapes(heads: int, rank: int, rotary: int, block: int, splits: int, device: torch.device):
    """One head, those of a program and one more; blocks of one position, and of more than a tile; lengths
    around a chunk of 32. What the cache has beyond a row's length is NaN."""
    lengths = [1, 31, 32, 33]
    most, width = -(-max(lengths) // block), rank + rotary
    ids = torch.randperm(most * len(lengths), generator=torch.Generator().manual_seed(7)).int()
    tables = ids.view(len(lengths), most)
    cache = torch.full((len(ids), 1, block, width), torch.nan)
    query = random(len(lengths), heads, width, dtype=torch.float32, seed=1)
    exact = []
    for row, length in enumerate(lengths):
        kept = random(length, width, dtype=torch.float32, seed=2 + row)
        slots = [int(tables[row, p // block]) * block + p % block for p in range(length)]
        cache.view(-1, width)[slots] = kept
        scores = SCALE * query[row].double() @ kept.double().T
        exact.append(scores.softmax(-1) @ kept[:, :rank].double())
    starts = torch.arange(len(lengths) + 1, dtype=torch.int32, device=device)
    ends = torch.tensor(lengths, dtype=torch.int32, device=device)
    batch = PagedBatch(starts, ends, tables.to(device), max(lengths))
    result = latent_attention(query.to(device), cache.to(device), batch, SCALE, rank, splits)
    assert_close(result.cpu(), torch.stack(exact), 1e-5, 1e-5)


def test_no_tokens(device: torch.device):
    cache = torch.zeros(1, 1, BLOCK, RANK + ROTARY, device=device)
    none = torch.zeros(1, dtype=torch.int32, device=device)
    batch = PagedBatch(none, none[:0], none.view(1, 1)[:0], 1)
    query = torch.empty(0, HEADS, RANK + ROTARY, device=device)
    assert latent_attention(query, cache, batch, SCALE, RANK).shape == (0, HEADS, RANK)
    store_latents(torch.empty(0, RANK + ROTARY, device=device), none[:0], cache)
    assert not cache.any()
