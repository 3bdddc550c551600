"""What products ask for from memory: each piece of the next attention's keys and values once, the last ones
last."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from kernels.cpu.attention.block_attention import block_kernels
from kernels.cpu.attention.planning.kv_prefetch import LEAST_ROWS, KVPrefetch
from kernels.cpu.attention.sizes import QUERIES
from tests.kernels.block_plans import plan_blocks

pytestmark = pytest.mark.cpu_kernels

BLOCK, KV_HEADS, HEAD, GROUP = 16, 3, 64, 3
BLOCK_BYTES = 2 * KV_HEADS * BLOCK * HEAD  # of keys: three pieces


def listed(starts: list[int], counts: list[int], window: int | None = None, shared: int = 0) -> list[int]:
    """The list for rows with blocks of their own: row r has 100 r, 100 r + 1, ... But so many of the first
    ones are those of row 0."""
    from kernels.cpu.runtime.thread_pool import TEAM

    kernels = block_kernels(torch.bfloat16, BLOCK, HEAD, GROUP)
    assert kernels is not None
    tables = 100 * np.arange(len(starts))[:, None] + np.arange(100)
    tables[:, :shared] = tables[0, :shared]
    plan = plan_blocks(kernels, np.array(starts), np.array(counts), tables, window, HEAD, KV_HEADS)
    prefetch = KVPrefetch()
    TEAM.run_one(prefetch.operation, 1, prefetch.record(plan, cache()), 1)
    return prefetch._list[: prefetch._step.count].tolist()


def cache() -> tuple[torch.Tensor, torch.Tensor]:
    """Values begin a thousand blocks behind the keys. They are never read."""
    both = torch.empty((2, 1000, KV_HEADS, BLOCK, HEAD), dtype=torch.bfloat16)
    return both[0], both[1]


def pieces(row: int, first: int, last: int) -> list[int]:
    """Of those blocks of a row: keys, then values."""
    keys = range((100 * row + first) * BLOCK_BYTES, (100 * row + last + 1) * BLOCK_BYTES, 2048)
    return [*keys, *(at + 1000 * BLOCK_BYTES for at in keys)]


def test_rows_that_decode_long_ones_first():
    assert listed([15, 40, 16], [1, 1, 1]) == [*pieces(1, 0, 2), *pieces(2, 0, 1), *pieces(0, 0, 0)]


def test_a_window():
    """Of 20 positions: up to 79, that is from 60 on."""
    assert listed([79], [1], window=20) == pieces(0, 3, 4)


def test_a_row_of_several_items_counts_once():
    """A prompt of 10 tokens has 30 (query, head) pairs; its first 8 see least."""
    assert 10 * GROUP > 2 * QUERIES
    assert listed([30], [10]) == pieces(0, 0, 2)


def test_a_row_that_is_split_counts_once():
    """It has an item for each of its parts."""
    assert listed([1200], [1]) == pieces(0, 0, 75)


def test_a_common_prefix_is_listed_once():
    own = pieces(0, 0, 3), pieces(1, 2, 3), pieces(2, 2, 2)
    assert listed([50, 50, 40], [1, 1, 1], shared=2) == [piece for row in own for piece in row]


def test_two_rows_in_an_item_are_listed_once():
    """Six rows on one thread are three items."""
    from kernels.cpu.runtime.thread_pool import TEAM

    before = TEAM.threads
    TEAM.set_threads(1)
    together = listed([90] * 6, [1] * 6, shared=5)
    TEAM.set_threads(before)
    own = [piece for row in range(1, 6) for piece in pieces(row, 5, 5)]
    assert sorted(together) == sorted([*pieces(0, 0, 5), *own])


def test_a_list_has_an_end():
    from kernels.cpu.attention.planning.kv_prefetch_kernel import MOST_PIECES

    rows = 30
    assert rows * 100 * 2 * 3 > MOST_PIECES
    assert len(listed([100 * BLOCK - 1] * rows, [1] * rows)) == MOST_PIECES


@pytest.fixture(scope="module")
def first_piece() -> Callable[[int, int, int, int], int]:
    """pieces_of_block(), to be called from here."""
    from kernels.cpu.attention.planning.kv_prefetch_kernel import pieces_of_block
    from kernels.cpu.compiler.cache import compiled

    return compiled(pieces_of_block)


PRODUCTS = [(576, 288), (3072, 288), (576, 768), (960, 288)]
"""Columns and words: 12, 64, 12 and 20 blocks, of 9, 9, 24 and 9 pieces for each tile."""
EACH = 12 * 9 + 64 * 9 + 12 * 24 + 20 * 9


@pytest.mark.parametrize("tiles", [1, 2, 6])
@pytest.mark.parametrize("count", [1, 9, EACH - 1, EACH, EACH + 1, 3000, 8192])
def test_each_piece_is_asked_for_once(tiles: int, count: int, first_piece):
    """All of them, or those that come first."""
    prefetch = KVPrefetch()
    prefetch._step.count = count
    asked: list[int] = []
    streams = prefetch.streams(cache()[0], PRODUCTS)
    for stream, (columns, words) in zip(streams, PRODUCTS, strict=True):
        for block in range(columns // 48):
            at = first_piece(stream, block, words, tiles)
            if at:
                first = (at - prefetch._list.ctypes.data) // 8
                asked += range(first, first + tiles * (words // 32))
    assert len(asked) == len(set(asked))
    assert asked == list(range(asked[0], asked[0] + len(asked))) if asked else count < EACH
    if tiles * EACH <= count:
        assert len(asked) == tiles * EACH and asked[0] == 0
    else:
        block = tiles * PRODUCTS[-1][1] // 32
        assert asked[-1] == count - 1 if asked else count < block
        assert len(asked) > count - tiles * max(words // 32 for _, words in PRODUCTS)


def test_steps_that_ask_for_nothing(first_piece):
    prefetch = KVPrefetch()
    stream = prefetch.streams(cache()[0], PRODUCTS)[0]
    assert first_piece(0, 0, 288, 3) == 0
    assert first_piece(stream, 0, 288, 0) == 0  # too few rows
    assert first_piece(stream, 0, 288, 3) == 0  # an empty list
    assert LEAST_ROWS // 8 - 2 == 1
