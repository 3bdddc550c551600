"""Items of attention: every (query, head) pair of every row exactly once."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kernels.cpu.attention.planning.work_items import ITEM_WORDS, SPLIT_TOKENS, Int64s, plan_sizes
from kernels.cpu.attention.records import AttentionItem
from kernels.cpu.attention.sizes import LEAST_SHARED, QUERIES
from tests.kernels.work_items import list_items


def kernels(group: int = 3, threads: int = 2, joins: bool = False, block_size: int = 16) -> Any:
    team = SimpleNamespace(threads=threads)
    return SimpleNamespace(group=group, team=team, joins=joins, block_size=block_size)


def items_of(
    of: Any, rows: list[tuple[int, int]], tables: Int64s | None = None
) -> tuple[list[AttentionItem], int]:
    """rows: (start, count). tables: [R, N]; default: no block in common. Returns all items, and how many
    threads take."""
    starts, counts = (np.array(side, np.int64) for side in zip(*rows, strict=True))
    if tables is None:
        width = int((starts + counts).max()) // of.block_size + 1
        tables = np.arange(len(rows) * width).reshape(len(rows), width)
    sizes = plan_sizes(of, starts, counts, int(counts.sum()), int((starts + counts).max()))
    words, made = list_items(of, starts, counts, np.ascontiguousarray(tables), sizes)
    assert words.shape[1] == ITEM_WORDS and len(words) <= sizes.items
    return [AttentionItem.from_buffer_copy(line.tobytes()) for line in words], made


def pairs_of(items: list[AttentionItem], group: int) -> list[tuple[int, int, int]]:
    """(token, head, part) of all items. A row's tokens are numbered from its first one on."""
    return sorted(
        (item.token + (item.first + pair) // group, (item.first + pair) % group, item.part)
        for item in items
        for pair in range(item.pairs)
    )


@pytest.mark.parametrize("group", [1, 2, 3, 7, 8, 11])
@pytest.mark.parametrize(
    "rows", [[(0, 1)], [(5, 1), (0, 7), (40, 30)], [(100, 1)] * 5, [(0, 100)], [(3, 9), (0, 1)]]
)
def test_every_pair_once(rows: list[tuple[int, int]], group: int):
    items, made = items_of(kernels(group), rows)
    assert made == len(items) and all(0 < item.pairs <= QUERIES for item in items)
    tokens = sum(count for _, count in rows)
    assert pairs_of(items, group) == [(token, head, -1) for token in range(tokens) for head in range(group)]


def test_long_items_come_first():
    items, _ = items_of(kernels(), [(10, 1), (400, 1), (100, 1)])
    assert [item.start for item in items] == [400, 100, 10]


def test_a_long_row_is_split():
    """Into parts of 512 positions, each with a slot of its own; a short one beside it is not."""
    items, _ = items_of(kernels(), [(1300, 1), (5, 1)])
    parts = [item for item in items if item.part >= 0]
    assert sorted(item.part for item in parts) == [0, 1, 2] and len({item.slot for item in parts}) == 3
    assert [item.start for item in items if item.part < 0] == [5]


def test_items_of_one_part_are_neighbours():
    """Of a verified draft: 12 pairs need two items for each part, whose results have places by part."""
    items, _ = items_of(kernels(), [(5, 1), (1300, 4)])
    parts = [item for item in items if item.part >= 0]
    assert [item.part for item in parts] == [0, 0, 1, 1, 2, 2]
    assert sorted(item.slot for item in parts) == list(range(6))
    assert {(item.first, item.slot - item.part) for item in parts} == {(0, 0), (8, 3)}


def test_a_prompt_is_not_split():
    """It has items enough for all threads."""
    items, _ = items_of(kernels(), [(1300, SPLIT_TOKENS + 1)])
    assert all(item.part == -1 for item in items)


def test_rows_with_common_blocks_are_paired():
    """The second row's item comes behind those that threads take, and says how much is shared."""
    of = kernels(group=3, joins=True)
    blocks = LEAST_SHARED // 16 + 2
    tables = np.tile(np.arange(blocks + 1), (8, 1))
    tables[:, -1] = 100 + np.arange(8)
    items, made = items_of(of, [(blocks * 16, 1)] * 8, tables)
    assert len(items) == 8 and made < 8
    paired = [item for item in items[:made] if item.paired]
    assert len(paired) == 8 - made
    assert {item.shared for item in items[made:]} == {blocks * 16}


@pytest.mark.parametrize("common", [0, LEAST_SHARED // 16 - 1])
def test_little_in_common_is_not_worth_it(common: int):
    of = kernels(group=3, joins=True)
    tables = np.arange(8 * 10).reshape(8, 10)
    tables[:, :common] = np.arange(common)
    items, made = items_of(of, [(150, 1)] * 8, tables)
    assert made == len(items) == 8


def test_groups_without_loops_of_their_own_are_not_paired():
    tables = np.tile(np.arange(12), (8, 1))
    items, made = items_of(kernels(group=5, joins=False), [(150, 1)] * 8, tables)
    assert made == len(items)
