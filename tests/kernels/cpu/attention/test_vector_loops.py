"""Scores and mixed values: compiled code gives what Python gives with the same functions, bit for bit, and
float64."""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

pytest.importorskip("llvmlite")
from kernels.cpu.attention.sizes import QUERY, SCORES  # noqa: E402
from kernels.cpu.attention.stored_words import E4M3_FLOATS, E4M3_PAIRS, FLOATS, PAIRS  # noqa: E402
from kernels.cpu.attention.vector_loops import clear, copy, copy_first_halves, mix, score  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.compiler.language import unroll  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Array = npt.NDArray[Any]
KINDS = ((0, PAIRS), (1, FLOATS), (2, E4M3_PAIRS), (3, E4M3_FLOATS))
TILES, WIDTH = 3, 32
"""Of a part: an odd number. Values of a query, and of a row of sums."""


def score_tiles(kind: int, q: int, tiles: int, out: int) -> None:
    """Of 3 rows two tiles at a time, and behind them of 6 rows one at a time."""
    for number, stored in unroll(KINDS):
        if kind == number:
            words = WIDTH // stored.in_word
            score(stored, 3, 2, q, tiles, TILES, 0, out, words)
            score(stored, 6, 1, q, tiles, TILES, 0, out + 3 * SCORES, words)


def mix_tiles(kind: int, p: int, tiles: int, sums: int, steps: int) -> None:
    """Of 3 rows a row of two vectors at once, and behind them of 6 rows in two turns."""
    for number, stored in unroll(KINDS):
        if kind == number:
            stride, width = 4 * WIDTH, 4 * WIDTH
            mix(stored, 3, 2, p, tiles, 0, 0, stride, sums, width, steps)
            for column in range(0, width, 64):
                mix(stored, 6, 1, p, tiles, 0, column, stride, sums + 3 * width, width, steps)


def of_both(function: Callable[..., None], machine: Callable[..., None], out: Array, *given: int) -> Array:
    """What compiled code has written, which is what Python writes."""
    results = []
    for one in (machine, function):
        copied = out.copy()
        one(*(copied.ctypes.data if value == out.ctypes.data else value for value in given))
        results.append(copied)
    np.testing.assert_array_equal(*results)
    return results[0]


def cached(kind: int, shape: tuple[int, ...]) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers as the cache holds them, and as float64."""
    dtype = (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e4m3fn)[kind]
    held = torch.randn(shape, generator=torch.Generator().manual_seed(kind)).to(dtype)
    return held, held.double()


def queries(kind: int) -> tuple[Array, Array]:
    """[6, QUERY] bytes, and [6, WIDTH] float64."""
    values = torch.randn(6, WIDTH, generator=torch.Generator().manual_seed(9))
    values = values.float() if kind % 2 else values.bfloat16()
    memory = np.zeros((6, QUERY), np.uint8)
    memory[:, : WIDTH * values.itemsize] = values.view(torch.uint8).numpy()
    return memory, values.double().numpy()


@pytest.fixture(scope="module")
def machine() -> tuple[Callable[..., None], Callable[..., None]]:
    return compiled(score_tiles), compiled(mix_tiles)


@pytest.mark.parametrize("kind", range(4))
def test_scores(kind: int, machine: tuple[Callable[..., None], Callable[..., None]]):
    """Of three tiles, that lie apart: a row has the same bits beside two others and beside five."""
    in_word = 1 if kind % 2 else 2
    keys, exact = cached(kind, (TILES + 1, WIDTH // in_word, 16, in_word))
    memory, values = queries(kind)
    order = [2, 0, 1, 3]
    tiles = np.array([keys[tile].data_ptr() for tile in order])
    out = np.zeros((9, SCORES // 4), np.float32)
    given = (kind, memory.ctypes.data, tiles.ctypes.data, out.ctypes.data)
    found = of_both(score_tiles, machine[0], out, *given)[:, : 16 * TILES]
    assert (found[:3] == found[3:6]).all()
    by_position = exact[order[:TILES]].permute(0, 2, 1, 3).reshape(16 * TILES, WIDTH).numpy()
    np.testing.assert_allclose(found[3:], values @ by_position.T, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("steps", [1, 7, 19])
def test_mixed_values(kind: int, steps: int, machine: tuple[Callable[..., None], Callable[..., None]]):
    """Of one step, some of a tile, and more than a tile or two; added to what the sums were."""
    in_word = 1 if kind % 2 else 2
    held, exact = cached(kind, (TILES, 16 // in_word, WIDTH, in_word))
    weights = torch.rand(6, steps * in_word, generator=torch.Generator().manual_seed(3))
    weights = weights.float() if kind % 2 else weights.bfloat16()
    memory = np.zeros((6, SCORES), np.uint8)
    memory[:, : 4 * steps] = weights.view(torch.uint8).numpy()
    tiles = np.array([held[tile].data_ptr() for tile in (1, 2, 0)])
    sums = np.random.default_rng(1).normal(size=(9, WIDTH)).astype(np.float32)
    sums[3:6] = sums[:3]
    given = (kind, memory.ctypes.data, tiles.ctypes.data, sums.ctypes.data, steps)
    found = of_both(mix_tiles, machine[1], sums, *given)
    assert (found[:3] == found[3:6]).all()
    values = exact[[1, 2, 0]].permute(0, 1, 3, 2).reshape(16 * TILES, WIDTH)[: steps * in_word].numpy()
    np.testing.assert_allclose(found[3:] - sums[3:], weights.double().numpy() @ values, rtol=1e-5, atol=1e-4)


def move(source: int, pairs: int, bytes_: int, whole: int, zeros: int) -> None:
    """Three vectors of each kind."""
    copy_first_halves(PAIRS, source, pairs, 3)
    copy_first_halves(E4M3_PAIRS, source, bytes_, 3)
    copy(source, whole, 3)
    clear(zeros, 2)


def test_copies():
    """No byte behind them changes."""
    source = np.random.default_rng(2).integers(1, 256, 256).astype(np.uint8)
    for function in (compiled(move), move):
        out = np.full((4, 256), 7, np.uint8)
        function(source.ctypes.data, *(row.ctypes.data for row in out))
        firsts = source.copy().reshape(-1, 4)
        firsts[:, 2:] = 0
        assert (out[0, :192] == firsts.ravel()[:192]).all()
        assert (out[1, :96:2] == source[:96:2]).all() and not out[1, 1:96:2].any()
        assert (out[2, :192] == source[:192]).all() and not out[3, :128].any()
        for row, end in zip(out, (192, 96, 192, 128), strict=True):
            assert (row[end:] == 7).all()
