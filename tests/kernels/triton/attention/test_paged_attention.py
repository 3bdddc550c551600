"""The Triton kernels for paged attention against dense attention in float64."""

from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from tests.kernels.attention_cases import Case
from tests.kernels.tolerances import assert_close
from tests.kernels.triton.conftest import Where

DECODE = [(5, 1), (70, 1), (0, 1), (31, 1), (32, 1)]
PREFILL = [(0, 7), (20, 40), (0, 1)]


def to_device(case: Case, device: torch.device) -> PagedBatch:
    """The case as the kernels want it; its tensors move too."""
    for name in ("query", "key_cache", "value_cache"):
        setattr(case, name, getattr(case, name).to(device))
    ends = case.starts + case.counts
    starts = np.concatenate([[0], np.cumsum(case.counts)])

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(device)

    return PagedBatch(column(starts), column(ends), column(case.tables), int(ends.max()))


def check(
    case: Case,
    where: Where,
    window: int | None = None,
    soft_cap: float | None = None,
    most_chunks: int | None = None,
    bidirectional: bool = False,
) -> None:
    """Results of the kernels against exact ones."""
    batch = to_device(case, where.device)
    caches = case.key_cache, case.value_cache
    result = paged_attention(
        *(case.query, *caches, batch, case.scale, window, soft_cap),
        most_chunks=most_chunks,
        bidirectional=bidirectional,
    )
    assert result.dtype == where.dtype
    case.query = case.query.cpu()
    exact = case.exact(window, soft_cap, bidirectional=bidirectional)
    assert_close(result.cpu(), exact, where.absolute, where.relative)


@pytest.mark.parametrize("window", [None, 1, 20])
def test_decode_and_prefill_in_one_step(where: Where, window: int | None):
    """Nothing of other rows, of unused blocks, or of what an earlier owner left in a block (NaN here)."""
    check(Case(DECODE + PREFILL, where.dtype, block_size=4), where, window)


@pytest.mark.parametrize(
    ("heads", "kv_heads", "head_dim", "block_size"),
    [
        (1, 1, 64, 16),
        (4, 4, 80, 16),
        (14, 2, 64, 128),
        (3, 1, 96, 48),
        (8, 1, 128, 64),
        (2, 1, 256, 32),
        (20, 1, 32, 16),
    ],
)
def test_shapes(where: Where, heads: int, kv_heads: int, head_dim: int, block_size: int):
    """Groups that are no power of two, head sizes that are none, blocks below, at and above a tile."""
    rows = [(70, 1), (17, 1), (15, 20)]
    scale = head_dim**-0.5
    check(Case(rows, where.dtype, heads, kv_heads, head_dim, block_size, scale), where)


@pytest.mark.parametrize(("most_chunks", "window"), [(2, None), (1, 70), (1, None)])
@pytest.mark.usefixtures("short_chunks")
def test_rows_that_programs_share(where: Where, most_chunks: int, window: int | None):
    """Beside rows that they do not, and a piece of a prompt; a window that begins in a chunk."""
    rows = [(150, 1), (5, 1), (120, 20), (64, 1)]
    check(Case(rows, where.dtype, block_size=16), where, window, None, most_chunks)


@pytest.mark.parametrize(("window", "most_chunks"), [(None, None), (None, 1), (20, 1)])
@pytest.mark.usefixtures("short_chunks")
def test_bidirectional(where: Where, window: int | None, most_chunks: int | None):
    """Rows of one token, of less than a tile, and of two chunks, which programs share or do not."""
    case = Case([(0, 1), (0, 9), (0, 70)], where.dtype, 2, 1, block_size=16)
    check(case, where, window, None, most_chunks, bidirectional=True)


@pytest.mark.parametrize(("window", "most_chunks"), [(None, 1), (3, None), (70, 1)])
@pytest.mark.usefixtures("short_chunks")
def test_images_that_are_seen_whole(where: Where, window: int | None, most_chunks: int | None):
    """Beside text and rows that decode, in one chunk and in two, at the end of a row too, and beyond windows.
    A row has the same bits by itself, and where its first tokens were computed before."""
    case = Case([(20, 70), (66, 1), (0, 9), (40, 6)], where.dtype, 2, 1, block_size=16)
    batch, lasts = to_device(case, where.device), case.last_seen()
    caches, given = (case.key_cache, case.value_cache), torch.from_numpy(lasts).to(where.device)
    attention = partial(paged_attention, scale=case.scale, window=window, most_chunks=most_chunks)
    found = attention(case.query, *caches, batch, last_seen=given)
    text = attention(case.query, *caches, batch)
    assert not torch.equal(text, found)
    own = torch.from_numpy(np.concatenate([*map(np.arange, case.starts, case.starts + case.counts)]))
    assert torch.equal(attention(case.query, *caches, batch, last_seen=own.to(where.device)), text)
    tail = slice(50, 70)
    integers = {"dtype": torch.int32, "device": where.device}
    rows = torch.tensor([0, 20], **integers), torch.tensor([90], **integers)
    alone = PagedBatch(*rows, batch.block_tables[:1], batch.max_length)
    assert torch.equal(attention(case.query[tail], *caches, alone, last_seen=given[tail]), found[tail])
    case.query = case.query.cpu()
    assert_close(found.cpu(), case.exact(window, lasts=lasts), where.absolute, where.relative)


@pytest.mark.parametrize("window", [None, 9])
def test_soft_cap(where: Where, window: int | None):
    """Scores to which the cap does something."""
    check(Case([(40, 1), (10, 12)], where.dtype, head_dim=64, block_size=16), where, window, 0.9)


def test_a_strided_query(where: Where):
    """A view of a fused projection."""
    case = Case([(20, 1), (5, 4)], where.dtype)
    fused = torch.full((case.query.shape[0], 10, 24), torch.nan, dtype=where.dtype)
    fused[:, 2:8] = case.query
    batch = to_device(case, where.device)
    view = fused.to(where.device)[:, 2:8]
    result = paged_attention(view, case.key_cache, case.value_cache, batch, case.scale)
    assert torch.equal(
        result, paged_attention(case.query, case.key_cache, case.value_cache, batch, case.scale)
    )


@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("most_chunks", "window"), [(1, None), (2, None), (1, 50)])
@pytest.mark.usefixtures("short_chunks")
def test_padding_rows_get_zeros(where: Where, most_chunks: int, window: int | None, bidirectional: bool):
    """A graph of 4 rows that holds 2: the others have one token, or the rest of them, and no length."""
    case = Case([(70, 1), (3, 1)], where.dtype, block_size=16)
    batch = to_device(case, where.device)
    integers = {"dtype": torch.int32, "device": where.device}
    padded = PagedBatch(
        torch.tensor([0, 1, 2, 3, 40], **integers),
        torch.tensor([71, 4, 0, 0], **integers),
        torch.cat((batch.block_tables, torch.zeros(2, batch.block_tables.shape[1], **integers))),
        batch.max_length,
    )
    query = torch.cat((case.query, torch.full_like(case.query[:1], torch.nan).expand(38, -1, -1)))
    caches = case.key_cache, case.value_cache
    seen: dict[str, Any] = {"window": window, "bidirectional": bidirectional}
    attention = partial(paged_attention, scale=case.scale, most_chunks=most_chunks, **seen)
    result = attention(query, *caches, padded)
    expected = attention(case.query, *caches, batch)
    assert torch.equal(result[:2], expected)
    assert not result[2:].any()


@pytest.mark.parametrize("most_chunks", [1, 2])
@pytest.mark.usefixtures("short_chunks")
def test_several_queries_of_a_decoding_row(where: Where, most_chunks: int):
    """As when drafted tokens are verified."""
    check(Case([(40, 3), (9, 2), (70, 1)], where.dtype, block_size=16), where, most_chunks=most_chunks)
