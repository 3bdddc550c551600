"""The merge of partial attention results against its formula in float64."""

import pytest
import torch

from kernels.triton.attention.merge_splits import merge_splits, merge_splits_reference
from tests.kernels.rows import assert_rows_are_independent
from tests.kernels.tolerances import assert_close, random
from tests.kernels.triton.conftest import Where


def partial(tokens: int, heads: int, splits: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """parts [T, H, I, D] and stats [T, H, I, 2]: scores far apart, weights positive."""
    parts = random(tokens, heads, splits, head_dim, dtype=torch.float32)
    largest = random(tokens, heads, splits, dtype=torch.float32, seed=1, scale=20.0)
    total = random(tokens, heads, splits, dtype=torch.float32, seed=2).abs() + 0.1
    return parts, torch.stack((largest, total), -1)


def merged(parts: torch.Tensor, stats: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    tokens, heads, _, head_dim = parts.shape
    out = torch.full((tokens, heads, head_dim), 7.0, dtype=dtype, device=parts.device)
    merge_splits(parts, stats, out)
    return out


@pytest.mark.parametrize(
    ("tokens", "heads", "splits", "head_dim"),
    [(1, 1, 1, 1), (3, 2, 2, 24), (2, 5, 8, 80), (1, 2, 64, 128), (2, 1, 4, 256)],
)
def test_equals_float64(where: Where, tokens: int, heads: int, splits: int, head_dim: int):
    parts, stats = partial(tokens, heads, splits, head_dim)
    result = merged(parts.to(where.device), stats.to(where.device), where.dtype)
    assert_close(result.cpu(), merge_splits_reference(parts, stats), 4 * where.absolute, 4 * where.relative)


def test_splits_that_saw_nothing(where: Where):
    """Their parts are not read, so NaN there does no harm; where all saw nothing, the result is 0."""
    parts, stats = partial(2, 1, 4, 16)
    stats[0, 0, 1:, 1] = stats[1, 0, :, 1] = 0
    stats[0, 0, 1:, 0] = stats[1, 0, :, 0] = -torch.inf
    parts[0, 0, 1:] = parts[1] = torch.nan
    result = merged(parts.to(where.device), stats.to(where.device), where.dtype).cpu()
    exact = parts[0, 0, 0].double() / stats[0, 0, 0, 1].double()
    assert_close(result[0, 0], exact, 4 * where.absolute, 4 * where.relative)
    assert not result[1].any()


def test_padding_tokens_stay(where: Where):
    """out may be longer than what was computed: behind it nothing is written."""
    parts, stats = partial(2, 2, 2, 16)
    out = torch.full((5, 2, 16), 7.0, dtype=where.dtype, device=where.device)
    merge_splits(parts.to(where.device), stats.to(where.device), out)
    assert (out[2:] == 7).all() and not (out[:2] == 7).all()


def test_tokens_are_independent(where: Where):
    parts, stats = (x.to(where.device) for x in partial(4, 2, 4, 16))
    assert_rows_are_independent(lambda parts, stats: merged(parts, stats, where.dtype), parts, stats)
