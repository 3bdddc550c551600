"""Weights of attention, against float64."""

from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.loops import BFLOAT16, FLOAT32  # noqa: E402
from kernels.cpu.attention.sizes import SCORES  # noqa: E402
from kernels.cpu.attention.softmax import hide_unseen  # noqa: E402
from kernels.cpu.attention.tiles import weigh_tiles  # noqa: E402
from kernels.cpu.compiler.cache import compiled  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Scores = npt.NDArray[np.float32]
machine_code = cache(compiled)
TILES, ROWS, SCALE = 5, 8, 0.125


def weigh(scores: int, tiles: int, pairs: int, scale: float, totals: int, soon: int) -> None:
    """Compiled by run()."""
    weigh_tiles(BFLOAT16, scores, tiles, pairs, scale, totals, soon)


def weigh_float32(scores: int, tiles: int, pairs: int, scale: float, totals: int, soon: int) -> None:
    """Compiled by run()."""
    weigh_tiles(FLOAT32, scores, tiles, pairs, scale, totals, soon)


def run(scores: Scores, pairs: int, asks: bool = True, wide: bool = False) -> tuple[Scores, Scores, Scores]:
    """scores: [ROWS, 16 * TILES]. Weights like them, sums and largest scores [16]. wide: of float32."""
    memory = np.zeros((ROWS, SCORES // 4), np.float32)
    memory[:, : 16 * TILES] = scores
    totals, soon = np.zeros(32, np.float32), np.full(ROWS, memory.ctypes.data)
    machine_code(weigh_float32 if wide else weigh)(
        memory.ctypes.data, TILES, pairs, SCALE, totals.ctypes.data, soon.ctypes.data if asks else 0
    )
    if wide:
        return memory[:, : 16 * TILES], totals[:16], totals[16:]
    halves = memory.view(np.uint16)[:, : 16 * TILES].astype(np.uint32) << 16
    return halves.view(np.float32), totals[:16], totals[16:]


def random_scores(spread: float) -> Scores:
    return np.random.default_rng(1).normal(0, spread, (ROWS, 16 * TILES)).astype(np.float32)


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("spread", [0.1, 10.0, 1000.0])
def test_weights_and_sums(spread: float, wide: bool):
    """A weight is rounded to bfloat16, a sum is of what was not; or both are float32."""
    scores = random_scores(spread)
    weights, totals, largest = run(scores, 8, wide=wide)
    scaled = SCALE * scores.astype(np.float64)
    exact = np.exp(scaled - scaled.max(1, keepdims=True))
    logarithms = 1e-6 * np.abs(scaled).max()  # float32 of scores so large
    np.testing.assert_allclose(weights, exact, rtol=(1e-6 if wide else 2**-8) + logarithms, atol=1e-37)
    np.testing.assert_allclose(totals[:ROWS], exact.sum(1), rtol=(1e-6 if wide else 1.1e-4) + logarithms)
    np.testing.assert_array_equal(largest[:ROWS], np.float32(SCALE) * scores.max(1))


@pytest.mark.parametrize("wide", [False, True])
def test_what_is_not_seen_weighs_nothing(wide: bool):
    """Exactly, beside the largest score and the least; of a row that sees nothing too."""
    scores = random_scores(3.0)
    scores[:, ::3] = -np.inf
    scores[1, 1::3] = -1e29
    scores[2] = -np.inf
    weights, totals, largest = run(scores, 8, wide=wide)
    assert (weights[:, ::3] == 0).all() and (weights[1, 1::3] == 0).all()
    assert (weights[2] == 0).all() and totals[2] == 0 and largest[2] == -np.inf
    assert (totals[[0, 1, 3, 4, 5, 6, 7]] > 1).all()


@pytest.mark.parametrize("pairs", range(1, ROWS))
def test_pairs_do_not_change_one_another(pairs: int):
    """The same bits in an item of any number of them, and beside NaN."""
    scores = random_scores(3.0)
    exact = run(scores, ROWS)
    others = [run(scores, pairs), run(scores, pairs, asks=False)]
    scores[pairs:] = np.nan
    for results in (*others, run(scores, ROWS), run(scores, ROWS, asks=False)):
        for one, other in zip(results, exact, strict=True):
            np.testing.assert_array_equal(one[:pairs], other[:pairs])


@pytest.mark.parametrize("wide", [False, True])
def test_python_gives_the_same(wide: bool):
    """Bit for bit in bfloat16; in float32 but for roundings of e ** x."""
    machine = random_scores(3.0)
    machine[2, ::2] = machine[5] = -np.inf
    results = []
    for function in (machine_code(weigh_float32 if wide else weigh), weigh_float32 if wide else weigh):
        memory, totals = np.zeros((ROWS, SCORES // 4), np.float32), np.zeros(32, np.float32)
        memory[:, : 16 * TILES] = machine
        function(memory.ctypes.data, TILES, 7, SCALE, totals.ctypes.data, 0)
        results.append((memory[:7, : 8 * TILES * (2 if wide else 1)], totals[:7], totals[16:23]))
    for one, other in zip(*results, strict=True):
        if wide:
            np.testing.assert_allclose(one, other, rtol=2e-6)
        else:
            np.testing.assert_array_equal(one.view(np.int32), other.view(np.int32))


def hide(scores: int, tile: int, tiles: int, pairs: int, base: int, seen: int) -> None:
    """Compiled by the test."""
    hide_unseen(scores, tile, tiles, pairs, base, seen)


@pytest.mark.parametrize("pairs", [1, 4, 5, 8])
def test_unseen_positions_are_hidden(pairs: int):
    """In two of five tiles: before the first position that a pair sees, and behind the last one; all of them,
    and none."""
    first = np.array([0, 40, 100, 37, 0, 52, -5, 33], np.int32)
    last = np.array([45, 47, 180, 37, 20, 64, 1000, 62], np.int32)
    seen, base = np.concatenate((first, last)), 16
    position = base + np.arange(16 * TILES)
    inside = (position >= base + 16) & (position < base + 48)
    for function in (machine_code(hide), hide):
        memory = np.zeros((ROWS, SCORES // 4), np.float32)
        function(memory.ctypes.data, 1, 2, pairs, base, seen.ctypes.data)
        for m in range(pairs):
            hidden = inside & ((position < first[m]) | (position > last[m]))
            assert (memory[m, : 16 * TILES] == np.where(hidden, -np.inf, 0)).all()
