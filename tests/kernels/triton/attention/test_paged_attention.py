"""The Triton kernels for paged attention against dense attention in float64."""

import numpy as np
import pytest
import torch

from kernels.triton.attention.attention_sizes import choose_splits
from kernels.triton.attention.merge_splits import merge_splits, merge_splits_reference
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from tests.kernels.attention_cases import Case
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where

DECODE = [(5, 1), (70, 1), (0, 1), (31, 1), (32, 1)]
PREFILL = [(0, 7), (20, 40), (0, 1)]


def to_device(case: Case, device: torch.device) -> PagedBatch:
    """The case as the kernels want it; its tensors move too."""
    for name in ("query", "key_cache", "value_cache"):
        setattr(case, name, getattr(case, name).to(device))
    decode = int(np.argmax(np.append(case.counts, 2) > 1))
    ends = case.starts + case.counts
    starts = np.concatenate([[0], np.cumsum(case.counts)])

    def column(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int32)).to(device)

    return PagedBatch(column(starts), column(ends), column(case.tables), decode, decode, int(ends.max()))


def check(
    case: Case,
    where: Where,
    window: int | None = None,
    soft_cap: float | None = None,
    chunk: int | None = None,
) -> None:
    """Results of the kernels against exact ones."""
    batch = to_device(case, where.device)
    caches = case.key_cache, case.value_cache
    result = paged_attention(case.query, *caches, batch, case.scale, window, soft_cap, chunk)
    assert result.dtype == where.dtype
    case.query = case.query.cpu()
    assert_close(result.cpu(), case.exact(window, soft_cap), where.absolute, where.relative)


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


@pytest.mark.parametrize(("chunk", "window"), [(64, None), (64, 70), (128, None)])
def test_splits(where: Where, chunk: int, window: int | None):
    """More splits than some rows have tiles; a window that begins in a split."""
    check(Case([(150, 1), (5, 1), (64, 1)], where.dtype, block_size=16), where, window, None, chunk)


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


@pytest.mark.parametrize("chunk", [None, 64])
def test_padding_rows_get_zeros(where: Where, chunk: int | None):
    """A graph of 4 rows that holds 2: the others have one token and no length."""
    case = Case([(70, 1), (3, 1)], where.dtype, block_size=16)
    batch = to_device(case, where.device)
    integers = {"dtype": torch.int32, "device": where.device}
    padded = PagedBatch(
        torch.tensor([0, 1, 2, 3, 4], **integers),
        torch.tensor([71, 4, 0, 0], **integers),
        torch.cat((batch.block_tables, torch.zeros(2, batch.block_tables.shape[1], **integers))),
        4,
        4,
        batch.max_length,
    )
    query = torch.cat((case.query, torch.full_like(case.query, torch.nan)))
    caches = case.key_cache, case.value_cache
    result = paged_attention(query, *caches, padded, case.scale, chunk=chunk)
    expected = paged_attention(case.query, *caches, batch, case.scale, chunk=chunk)
    assert torch.equal(result[:2], expected)
    assert not result[2:].any()


def test_several_queries_of_a_decoding_row(where: Where):
    """As when drafted tokens are verified."""
    case = Case([(40, 3), (9, 2), (70, 1)], where.dtype, block_size=16)
    batch = to_device(case, where.device)
    fields = batch.query_starts, batch.lengths, batch.block_tables
    together = PagedBatch(*fields, 3, 6, batch.max_length, decode_queries=3)
    for chunk in (None, 64):
        result = paged_attention(
            case.query, case.key_cache, case.value_cache, together, case.scale, chunk=chunk
        )
        case.query = case.query.cpu()
        assert_close(result.cpu(), case.exact(), where.absolute, where.relative)
        case.query = case.query.to(where.device)


def test_company_changes_nothing(where: Where):
    """With fixed chunks a row's result is bitwise the same alone and among others."""
    case = Case([(150, 1), (5, 1), (64, 1)], where.dtype, block_size=16)
    batch = to_device(case, where.device)
    caches = case.key_cache, case.value_cache
    result = paged_attention(case.query, *caches, batch, case.scale, chunk=64)
    for row in range(3):
        starts = torch.tensor([0, 1], dtype=torch.int32, device=where.device)
        length = int(batch.lengths[row])
        one = slice(row, row + 1)
        alone = PagedBatch(starts, batch.lengths[one], batch.block_tables[one], 1, 1, length)
        single = paged_attention(case.query[one], *caches, alone, case.scale, chunk=64)
        assert torch.equal(single[0], result[row])


def test_choice_of_splits():
    """As many as fill the processors; none where rows do; no more than there is work for."""
    device = torch.device("cpu")  # counts as 132 processors
    assert choose_splits(8, 32768, None, 64, device) == (32, 4)
    assert choose_splits(8, 1024, None, 64, device)[0] == 4
    assert choose_splits(256, 4096, None, 64, device)[0] == 1
    assert choose_splits(1, 1 << 20, None, 64, device)[0] == 64
    assert choose_splits(256, 1000, 256, 64, device) == (4, 4)


def test_merge(where: Where):
    """Splits that saw nothing, some of them in rows that saw nothing at all; their parts are NaN."""
    parts = random(3, 2, 8, 80, dtype=torch.float32)
    stats = random(3, 2, 8, 2, dtype=torch.float32, seed=1, scale=20).abs()
    for empty in ((0, 0, 3), (0, 1, slice(1, 8)), (2,)):
        stats[(*empty, ..., 0)], stats[(*empty, ..., 1)], parts[empty] = -torch.inf, 0, torch.nan
    out = torch.full((4, 2, 80), torch.nan, dtype=where.dtype, device=where.device)
    merge_splits(parts.to(where.device), stats.to(where.device), out)
    exact = merge_splits_reference(parts, stats)
    assert_close(out[:3].cpu(), exact, where.absolute, where.relative)
    assert out[3].isnan().all()
