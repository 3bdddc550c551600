"""The tiles of a part of attention: which positions, of which blocks, in which order; against a list that is
made position by position."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.records import (  # noqa: E402
    AttentionItem,
    AttentionRecord,
    PartPlace,
    PlanRecord,
    first_seen,
    last_seen,
)
from kernels.cpu.attention.sizes import (  # noqa: E402  # noqa: E402
    AHEAD,  # noqa: E402
    LIST,
    PART,
    PLACE,
    QUERIES,
)
from kernels.cpu.attention.tiles import append, locate  # noqa: E402
from kernels.ops.attention.gather_plan import first_seen as first_seen_reference  # noqa: E402
from kernels.ops.attention.gather_plan import last_seen as last_seen_reference  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

KEYS, VALUES, KV_HEADS, HEAD_DIM, GROUP = 1 << 40, 1 << 41, 2, 24, 3
Int64s = npt.NDArray[np.int64]


class Memory:
    """A place with its list."""

    def __init__(self) -> None:
        self.words = np.full(PLACE // 8, -1, np.int64)
        self.place = PartPlace.at(self.words.ctypes.data)

    def listed(self, count: int) -> list[int]:
        return self.words[LIST // 8 :][:count].tolist()


def plan_of(
    item: AttentionItem, window: int = 0, chunked: bool = False, bidirectional: bool = False
) -> PlanRecord:
    fields = {"bidirectional": bidirectional, "scratch": 0, "scratch_bytes": 0, "partials": 0, "set_bytes": 0}
    return PlanRecord(items=item.address, window=window, chunked=chunked, **fields)


def record_of(block_size: int) -> AttentionRecord:
    fields = {
        "query": 0,
        "out": 0,
        "plan": 0,
        "query_stride": 0,
        "out_stride": 0,
        "scale": 1.0,
        "partial_set": 0,
    }
    return AttentionRecord(
        key_cache=KEYS,
        value_cache=VALUES,
        kv_heads=KV_HEADS,
        value_dim=HEAD_DIM,
        head_dim=HEAD_DIM,
        group=GROUP,
        block_size=block_size,
        **fields,
    )


def tile_at(table: Int64s, position: int, block_size: int, head: int, size: int) -> int:
    """Bytes from the beginning of a cache [B, K, S, D] to the tile of a position."""
    block, inside = int(table[position // block_size]), position % block_size
    return size * HEAD_DIM * ((block * KV_HEADS + head) * block_size + inside // 16 * 16)


def table_of(seed: int) -> Int64s:
    return np.random.default_rng(seed).permutation(500).astype(np.int64)


def item_of(table: Int64s, start: int, first: int = 0, pairs: int = GROUP, **fields: int) -> AttentionItem:
    return AttentionItem(
        start=start, table=table.ctypes.data, token=0, first=first, pairs=pairs, part=-1, **fields
    )


@pytest.mark.parametrize("window", [0, 1, 16, 40, 600])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("position", [0, 1, 39, 40, 41, 599, 600, 1300])
def test_where_a_query_begins_to_see(position: int, chunked: bool, window: int):
    expected = first_seen_reference(np.array([position]), window or None, chunked)
    plan = plan_of(item_of(table_of(0), 0), window, chunked)
    assert first_seen(plan, position) == expected[0]


@pytest.mark.parametrize("window", [0, 1, 16, 40, 600])
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize("position", [0, 1, 39, 599, 699])
def test_where_a_query_ceases_to_see(position: int, bidirectional: bool, window: int):
    expected = last_seen_reference(np.array([position]), 700, window or None, bidirectional)
    item = item_of(table_of(0), 0, end=700)
    assert last_seen(plan_of(item, window, bidirectional=bidirectional), item, position) == expected[0]


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("block_size", [16, 48, 128])
@pytest.mark.parametrize(
    ("start", "first", "pairs", "part", "window"),
    [
        (0, 0, 3, 0, 0),
        (15, 0, 3, 0, 0),
        (16, 0, 3, 0, 0),
        (30, 6, 8, 0, 0),  # tokens 2, 3 and 4
        (PART - 1, 0, 3, 0, 0),
        (PART, 0, 3, 0, 0),
        (PART, 0, 3, 1, 0),
        (1300, 0, 3, 2, 0),
        (100, 0, 3, 0, 20),
        (100, 0, 3, 0, 85),
        (1300, 0, 8, 1, 300),
        (1300, 0, 3, 0, 300),  # the window has left this part
        (10, 0, 3, 1, 0),  # the row does not reach this part
    ],
)
def test_the_tiles_of_a_part(
    start: int, first: int, pairs: int, part: int, window: int, block_size: int, size: int
):
    """From the first position that its first query sees to that of its last one: keys, then values."""
    table, memory, head = table_of(start), Memory(), 1
    item = item_of(table, start, first, pairs)
    locate(size, plan_of(item, window), record_of(block_size), head, part, memory.place)
    queries = [start + pair // GROUP for pair in range(first, first + pairs)]
    seen = [
        p
        for p in range(max(0, queries[0] - window + 1) if window else 0, queries[-1] + 1)
        if p // PART == part
    ]
    tiles = sorted({p // 16 for p in seen})
    place = memory.place
    assert (place.tiles, place.own, place.shared, place.head) == (len(tiles), len(tiles), 0, head)
    assert place.item == item.address
    if not tiles:
        return
    assert (place.begin, place.end) == (16 * tiles[0], seen[-1] + 1)
    offsets = [tile_at(table, 16 * tile, block_size, head, size) for tile in tiles]
    assert memory.listed(2 * len(tiles)) == [
        *(KEYS + offset for offset in offsets),
        *(VALUES + offset for offset in offsets),
    ]
    assert memory.words[LIST // 8 + 2 * len(tiles)] == -1, "nothing behind them"


@pytest.mark.parametrize(
    ("start", "other", "common", "part"),
    [
        (70, 90, 64, 0),
        (90, 70, 64, 0),
        (70, 70, 64, 0),
        (600, 550, 544, 1),
        (600, 700, 128, 1),
        (79, 79, 64, 0),
    ],
)
def test_the_tiles_of_two_rows(start: int, other: int, common: int, part: int):
    """Those that they share come first and once, then those of the item's own row, then those of the
    other one."""
    table, second, memory = table_of(1), table_of(2), Memory()
    second[: common // 16] = table[: common // 16]
    paired = item_of(second, other, shared=common)
    item = item_of(table, start, paired=paired.address)
    locate(2, plan_of(item), record_of(16), 0, part, memory.place)
    begin, place = part * PART, memory.place
    own = range(begin // 16, start // 16 + 1)
    theirs = range(begin // 16, other // 16 + 1)
    shared = [tile for tile in own if 16 * tile < common and tile in theirs]
    tiles = [(table, tile) for tile in own] + [(second, tile) for tile in theirs if tile not in shared]
    assert (place.shared, place.own, place.tiles) == (len(shared), len(own) - len(shared), len(tiles))
    assert (place.end, place.paired_end) == (start + 1, other + 1)
    offsets = [tile_at(each, 16 * tile, 16, 0, 2) for each, tile in tiles]
    assert memory.listed(len(tiles)) == [KEYS + offset for offset in offsets]
    assert memory.listed(2 * len(tiles))[len(tiles) :] == [VALUES + offset for offset in offsets]


@pytest.mark.parametrize("following", [0, 1, 3, 7, 8, 9, 30])
def test_what_comes_after_a_part_is_asked_for(following: int):
    """As many entries as loops look ahead; the last one again where there are fewer, of nothing the part's
    own last one."""
    one, later = Memory(), Memory()
    one.place.tiles, later.place.tiles = 5, following
    one.words[LIST // 8 :][:10] = range(100, 110)
    later.words[LIST // 8 :][: 2 * following] = range(200, 200 + 2 * following)
    append(one.place, later.place)
    expected = [*range(200, 200 + 2 * following)] or [109]
    expected += [expected[-1]] * (AHEAD + QUERIES)
    assert one.listed(10) == list(range(100, 110))
    assert one.listed(10 + AHEAD + QUERIES)[10:] == expected[: AHEAD + QUERIES]
    assert one.words[LIST // 8 + 10 + AHEAD + QUERIES] == -1


def test_a_place_has_room_for_the_longest_list():
    """Two rows that share nothing of a part, and what comes after it."""
    most: Any = 4 * (PART // 16) + AHEAD + QUERIES
    assert LIST + 8 * most <= PLACE and PLACE % 64 == 0
