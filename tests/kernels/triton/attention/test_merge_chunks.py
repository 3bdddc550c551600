"""The merge of chunks against its formula in float64."""

import pytest
import torch

from kernels.triton.attention.merge_chunks import merge_chunks
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where
from tests.kernels.triton.references import merge_chunks_reference

pytestmark = pytest.mark.usefixtures("short_chunks")


def partial(tokens: int, heads: int, chunks: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """parts [T, H, C, D] and stats [T, H, C, 2]: scores far apart, weights positive."""
    parts = random(tokens, heads, chunks, head_dim, dtype=torch.float32)
    largest = random(tokens, heads, chunks, dtype=torch.float32, seed=1, scale=20.0)
    total = random(tokens, heads, chunks, dtype=torch.float32, seed=2).abs() + 0.1
    return parts, torch.stack((largest, total), -1)


def merged(
    parts: torch.Tensor, stats: torch.Tensor, dtype: torch.dtype, length: int | None = None
) -> torch.Tensor:
    """Of rows of one token each, and of this length; None: all chunks."""
    tokens, heads, chunks, head_dim = parts.shape
    out = torch.full((tokens + 1, heads, head_dim), 7.0, dtype=dtype, device=parts.device)
    starts = torch.arange(tokens + 1, dtype=torch.int32, device=parts.device)
    lengths = torch.full((tokens,), 64 * chunks if length is None else length, dtype=torch.int32)
    merge_chunks(parts, stats, out, starts, lengths.to(parts.device))
    assert (out[tokens:] == 7).all()  # padding tokens stay
    return out[:tokens]


@pytest.mark.parametrize(
    ("tokens", "heads", "chunks", "head_dim"),
    [(1, 1, 1, 1), (3, 2, 2, 24), (2, 5, 8, 80), (1, 6, 64, 128), (2, 1, 4, 256)],
)
def test_equals_float64(where: Where, tokens: int, heads: int, chunks: int, head_dim: int):
    parts, stats = partial(tokens, heads, chunks, head_dim)
    result = merged(parts.to(where.device), stats.to(where.device), where.dtype)
    assert_close(result.cpu(), merge_chunks_reference(parts, stats), 4 * where.absolute, 4 * where.relative)


def test_chunks_behind_the_row_are_not_read(where: Where):
    """They hold what an earlier step left, NaN here. A row without any position is 0."""
    parts, stats = partial(2, 1, 4, 16)
    parts[:, :, 2:], stats[:, :, 2:] = torch.nan, torch.nan
    result = merged(parts.to(where.device), stats.to(where.device), where.dtype, length=65).cpu()
    exact = merge_chunks_reference(parts[:, :, :2], stats[:, :, :2])
    assert_close(result, exact, 4 * where.absolute, 4 * where.relative)
    assert not merged(parts.to(where.device), stats.to(where.device), where.dtype, length=0).any()


def test_a_chunk_of_which_nothing_is_seen(where: Where):
    """It changes no bit, at the beginning and between others."""
    parts, stats = partial(1, 2, 4, 16)
    stats[:, :, 0::2, 0], stats[:, :, 0::2, 1], parts[:, :, 0::2] = -torch.inf, 0.0, 0.0
    seen = parts[:, :, 1::2].contiguous(), stats[:, :, 1::2].contiguous()
    results = [merged(p.to(where.device), s.to(where.device), where.dtype) for p, s in ((parts, stats), seen)]
    assert torch.equal(*results)


def test_tokens_are_independent(where: Where):
    parts, stats = (x.to(where.device) for x in partial(4, 2, 4, 16))
    assert_rows_are_independent(lambda parts, stats: merged(parts, stats, where.dtype), parts, stats)
