"""Scores of latents: compiled code gives what Python gives, bit for bit, and float64."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.attention.latent.operations import score_latents  # noqa: E402
from kernels.cpu.attention.sizes import (
    LATENT_QUERY,  # noqa: E402
    SCORES,  # noqa: E402
)
from kernels.cpu.attention.stored_words import FLOATS, PAIRS  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

WIDTH = 48


def of_pairs(q: int, tiles: int, count: int, out: int) -> None:
    """Of 3 rows, and behind them of 8: more than are computed at once where registers are few."""
    score_latents(PAIRS, 3, 1, q, tiles, count, 0, out, WIDTH // 2)
    score_latents(PAIRS, 8, 1, q, tiles, count, 0, out + 3 * SCORES, WIDTH // 2)


def of_floats(q: int, tiles: int, count: int, out: int) -> None:
    """The same in float32."""
    score_latents(FLOATS, 3, 1, q, tiles, count, 0, out, WIDTH)
    score_latents(FLOATS, 8, 1, q, tiles, count, 0, out + 3 * SCORES, WIDTH)


@pytest.mark.parametrize(
    ("function", "dtype"), [(of_pairs, torch.bfloat16), (of_floats, torch.float32)], ids=["pairs", "floats"]
)
@pytest.mark.parametrize("count", [1, 2])
def test_scores(function: Callable[[int, int, int, int], None], dtype: torch.dtype, count: int):
    """No tile more is written than there are, and a row has the same bits among three and among eight."""
    generator = torch.Generator().manual_seed(count)
    latents = torch.randn(2, 16, WIDTH, generator=generator).to(dtype)
    in_pairs = latents.view(2, 8, 2, WIDTH).transpose(2, 3).contiguous()
    held = in_pairs if dtype == torch.bfloat16 else latents
    query = np.zeros((8, LATENT_QUERY // 4), np.float32)
    query[:, :WIDTH] = torch.randn(8, WIDTH, generator=generator).numpy()
    tiles, results = np.array([held[1].data_ptr(), held[0].data_ptr()]), []
    for one in (compiled(function), function):
        out = np.full((11, SCORES // 4), 7, np.float32)
        one(query.ctypes.data, tiles.ctypes.data, count, out.ctypes.data)
        results.append(out)
    assert (results[0] == results[1]).all()
    found = results[0]
    assert (found[:3] == found[3:6]).all() and (found[:, 16 * count :] == 7).all()
    exact = query[:, :WIDTH].astype(np.float64) @ latents[[1, 0]].double().flatten(0, 1).numpy().T
    np.testing.assert_allclose(found[3:, : 16 * count], exact[:, : 16 * count], rtol=1e-5, atol=1e-5)
