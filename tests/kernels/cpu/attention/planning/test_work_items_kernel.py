"""Items as compiled code makes them: how long they are, their order, and which rows are paired."""

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.records import AttentionItem  # noqa: E402
from kernels.cpu.attention.sizes import (  # noqa: E402
    LEAST_SHARED,
    LOOKED_AT,
    PART,  # noqa: E402
)
from kernels.cpu.compiler.cache import compiled  # noqa: E402
from kernels.cpu.step import prepare_inputs as module  # noqa: E402
from kernels.cpu.step.prepare_inputs import ITEM  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

GROUP, BLOCK = 3, 16
MOST = 1 << 20


def item(start: int = 0, **fields: int) -> AttentionItem:
    """Of a row that decodes, unless fields say something else."""
    given = {
        "table": 0,
        "token": 0,
        "first": 0,
        "pairs": GROUP,
        "part": -1,
        "slot": 0,
        "paired": 0,
        "shared": 0,
    }
    return AttentionItem(start=start, **(given | fields))


def array(*items: AttentionItem) -> Any:
    """Side by side."""
    return (AttentionItem * len(items))(*items)


@pytest.mark.parametrize(
    ("fields", "length"),
    [
        ({"start": 0}, 1),
        ({"start": 40}, 41),
        ({"start": 40, "first": 3, "pairs": 8}, 44),  # pairs 3 to 10 are of tokens 1 to 3
        ({"start": 40, "first": 9, "pairs": 3}, 44),
        ({"start": 2 * PART, "part": 0}, PART),
        ({"start": 2 * PART, "part": 1}, PART),
        ({"start": 2 * PART, "part": 2}, 1),
        ({"start": 2 * PART + 77, "part": 2, "pairs": 8}, 80),
    ],
)
def test_the_positions_of_an_item(fields: dict[str, int], length: int):
    assert module.item_length(item(**fields), GROUP) == length


def test_an_item_of_two_rows_has_the_positions_of_both():
    other = item(30)
    assert module.item_length(item(40, paired=other.address), GROUP) == 41 + 31


@pytest.fixture(scope="module")
def sort() -> Callable[[int, int, int], None]:
    return compiled(module.sort_items)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 5, 13, 14, 40, 41, 200])
def test_long_items_come_first(count: int, sort: Callable[[int, int, int], None]):
    """Any number of them, with many equals; each is there once, whole, and Python sorts in the same way."""
    rng = np.random.default_rng(count)
    starts = rng.integers(0, max(2, count // 2), count).tolist()
    results = []
    for function in (sort, module.sort_items):
        items = array(*(item(start, token=number, slot=7 * number) for number, start in enumerate(starts)))
        function(ctypes.addressof(items), count, GROUP)
        results.append([(each.start, each.token, each.slot, each.pairs, each.part) for each in items])
    assert results[0] == results[1]
    assert [each[0] for each in results[0]] == sorted(starts, reverse=True)
    assert sorted(each[1] for each in results[0]) == list(range(count))
    assert all(each == (starts[each[1]], each[1], 7 * each[1], GROUP, -1) for each in results[0])


def test_items_of_parts_stand_behind_longer_rows(sort: Callable[[int, int, int], None]):
    """A part counts for what it has of its row."""
    long = 3 * PART + 9
    items = array(item(long, part=3), item(PART // 2), item(long, part=1), item(100))
    sort(ctypes.addressof(items), 4, GROUP)
    assert [(each.start, each.part) for each in items] == [(long, 1), (PART // 2, -1), (100, -1), (long, 3)]


@pytest.fixture(scope="module")
def join() -> Callable[[int, int, int, int, int, int], bool]:
    return compiled(module.join_item)


class Rows:
    """Items of rows, with tables, and room for those that are paired."""

    def __init__(self, starts: list[int], common: list[int], **last: int) -> None:
        """common: of each row the blocks that it has in common with all others. last: fields of the last
        item."""
        self.tables = 1000 * np.arange(1, len(starts) + 1)[:, None] + np.arange(100)
        for table, count in zip(self.tables, common, strict=True):
            table[:count] = np.arange(count)
        self.tables = np.ascontiguousarray(self.tables, np.int64)
        rows = [
            item(start, table=table.ctypes.data) for start, table in zip(starts, self.tables, strict=True)
        ]
        for name, value in last.items():
            setattr(rows[-1], name, value)
        self.items, self.room = array(*rows), AttentionItem(**{name: 0 for name in ("start", "table")})

    def join(self, function: Callable[..., bool], most: int = MOST) -> bool:
        count = len(self.items)
        to = ctypes.addressof(self.room)
        return bool(function(ctypes.addressof(self.items), count, most, GROUP, BLOCK, to))


ENOUGH = LEAST_SHARED // BLOCK


@pytest.mark.parametrize("python", [False, True])
@pytest.mark.parametrize(
    ("starts", "common", "most", "shared"),
    [
        ([70, 80], [ENOUGH, ENOUGH], MOST, 64),
        ([70, 80], [ENOUGH - 1, ENOUGH], MOST, None),  # too little
        ([63, 80], [ENOUGH, ENOUGH], MOST, None),  # the first row has not filled the fourth block
        ([64, 80], [ENOUGH, ENOUGH], MOST, 64),
        ([200, 150], [7, 20], MOST, 112),
        ([200, 150], [20, 20], MOST, 144),  # whole blocks of the shorter one
        ([70, 80], [4, 4], 152, 64),
        ([70, 80], [4, 4], 151, None),  # too long together
        ([PART - 1, PART], [20, 20], MOST, None),  # they end in other parts
        ([PART, PART], [20, 20], MOST, 320),
    ],
)
def test_two_rows_that_begin_with_the_same_blocks(
    starts: list[int],
    common: list[int],
    most: int,
    shared: int | None,
    python: bool,
    join: Callable[..., bool],
):
    """The last one goes elsewhere, as it was, and the other one knows where."""
    given = Rows(starts, common)
    before = bytes(given.items[1])
    assert given.join(module.join_item if python else join, most) == (shared is not None)
    if shared is None:
        assert given.items[0].paired == 0 and given.room.start == 0
        return
    assert given.items[0].paired == ctypes.addressof(given.room) and given.room.shared == shared
    given.room.shared = 0
    assert bytes(given.room) == before


@pytest.mark.parametrize(
    "fields", [{"part": 0}, {"first": 3}, {"pairs": 2}, {"pairs": 6}, {"paired": 1}], ids=str
)
def test_only_a_whole_row_that_decodes_is_paired(fields: dict[str, int], join: Callable[..., bool]):
    """On either side."""
    assert not Rows([70, 80], [4, 4], **fields).join(join)
    given = Rows([70, 80], [4, 4])
    for name, value in fields.items():
        setattr(given.items[0], name, value)
    assert not given.join(join)


def test_the_nearest_of_those_before_it(join: Callable[..., bool]):
    """Which is free, and fits."""
    given = Rows([70, 70, 70, 80], [4, 4, 2, 4])
    assert given.join(join)
    assert [bool(each.paired) for each in given.items[:3]] == [False, True, False]


@pytest.mark.parametrize(("between", "is_seen"), [(LOOKED_AT - 1, True), (LOOKED_AT, False)])
def test_rows_far_before_it_are_not_looked_at(between: int, is_seen: bool, join: Callable[..., bool]):
    given = Rows([70] * (between + 1) + [80], [4, *[0] * between, 4])
    assert given.join(join) == is_seen


def test_an_item_is_whole_words():
    assert ITEM % 8 == 0 and len(AttentionItem._fields_) == ITEM // 8
