"""The inputs of a step against their definition, number by number: tokens, slots, items of attention."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest

pytest.importorskip("llvmlite")
from kernels.cpu.attention.records import AttentionItem  # noqa: E402
from kernels.cpu.attention.sizes import PART  # noqa: E402
from kernels.cpu.step.prepare_inputs import SPLIT_TOKENS, prepare_inputs  # noqa: E402
from kernels.cpu.step.records import PrepareInputsJob  # noqa: E402

pytestmark = pytest.mark.cpu_kernels

Int64s = npt.NDArray[np.int64]
ROWS, LENGTH, WIDTH, BLOCK = 4, 2100, 140, 16
IDS = np.arange(ROWS * LENGTH, dtype=np.int64).reshape(ROWS, LENGTH) % 9973
TABLES = np.random.default_rng(0).permutation(ROWS * WIDTH).reshape(ROWS, WIDTH).astype(np.int64)
PROMPTS = np.array([7, 70, 700, 2000], np.int64)
GUARD = -7


@dataclass
class Inputs:
    """What a call has written."""

    columns: dict[str, list[int]]
    items: list[AttentionItem]  # those that are taken by themselves, in order
    room: list[AttentionItem]  # all that there is room for
    first: int  # address of the first item


def item_count(rows: list[tuple[int, int, int]], group: int, whole: int) -> int:
    """By the definition: each 8 pairs of a row, for each of its parts."""
    total = 0
    for _, start, count in rows:
        parts = -(-(start + count) // PART) if count <= SPLIT_TOKENS and start + count > whole else 1
        total += parts * -(-count * group // 8)
    return total


def prepare(
    rows: list[tuple[int, int, int]],
    *,
    group: int = 3,
    kv_heads: int = 2,
    whole: int = PART,
    joined: int = 0,
    sources: tuple[int, ...] = (),
    tables: Int64s = TABLES,
) -> Inputs:
    """rows: (row of the table, start, count). Nothing is written behind what there is room for."""
    step = np.array(rows, np.int64).reshape(-1, 3).T.copy()
    tokens, items = int(step[2].sum()), item_count(rows, group, whole)
    sizes = {
        "out_ids": tokens,
        "out_positions": tokens,
        "out_prompt_lens": tokens,
        "out_slots": tokens * kv_heads,
        "out_rows": tokens,
        "out_row_starts": len(rows),
        "out_logit_tokens": len(sources),
        "out_made": 1,
    }
    out = {name: np.full(size + 1, GUARD, np.int64) for name, size in sizes.items()}
    words = np.full((items + 1, AttentionItem.size() // 8), GUARD, np.int64)
    taken_from = np.array(sources, np.int64)
    job = PrepareInputsJob(
        token_ids=IDS.ctypes.data,
        token_ids_stride=IDS.strides[0],
        blocks=tables.ctypes.data,
        blocks_stride=tables.strides[0],
        prompt_lens=PROMPTS.ctypes.data,
        **dict(zip(("rows", "starts", "counts"), (column.ctypes.data for column in step), strict=True)),
        num_rows=len(rows),
        block_size=BLOCK,
        kv_heads=kv_heads,
        group=group,
        **{name: column.ctypes.data for name, column in out.items()},
        out_items=words.ctypes.data,
        sources=taken_from.ctypes.data,
        num_samples=len(sources),
        whole=whole,
        joined=joined,
        num_items=items,
    )
    prepare_inputs(job)
    assert all(column[-1] == GUARD for column in out.values()) and (words[-1] == GUARD).all()
    found = [AttentionItem.from_buffer_copy(line.tobytes()) for line in words[:items]]
    return Inputs(
        {name.removeprefix("out_"): column[:-1].tolist() for name, column in out.items()},
        found[: int(out["out_made"][0])],
        found,
        words.ctypes.data,
    )


MIXED = [(2, 0, 20), (0, 15, 1), (3, 1999, 1), (1, 30, 9)]


@pytest.mark.parametrize("kv_heads", [1, 3])
def test_tokens_positions_slots_and_prompts(kv_heads: int):
    """Of each token of each row, in the plan's order; blocks of a row lie anywhere."""
    columns = prepare(MIXED, kv_heads=kv_heads).columns
    places = [(row, position) for row, start, count in MIXED for position in range(start, start + count)]
    assert columns["ids"] == [IDS[place] for place in places]
    assert columns["positions"] == [position for _, position in places]
    assert columns["prompt_lens"] == [PROMPTS[row] for row, _ in places]
    assert columns["rows"] == [row for row, _ in places]
    assert columns["slots"] == [
        (TABLES[row, position // BLOCK] * kv_heads + head) * BLOCK + position % BLOCK
        for row, position in places
        for head in range(kv_heads)
    ]
    assert columns["row_starts"] == [0, 20, 21, 22]


def test_rows_that_are_sampled_from():
    """Their last tokens, in the order of the samples; a row may be named twice."""
    assert prepare(MIXED, sources=(3, 0, 0, 2)).columns["logit_tokens"] == [30, 19, 19, 21]
    assert prepare(MIXED).columns["logit_tokens"] == []


def test_a_step_without_rows():
    assert prepare([]).columns["made"] == [0]


@pytest.mark.parametrize("group", [1, 3, 7, 8, 9])
@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 33])
def test_pairs_of_a_row_that_is_not_split(count: int, group: int):
    """Eight at a time, each once; what an item says of its row."""
    inputs = prepare([(1, 3, 2), (2, 5, count)], group=group, whole=LENGTH)
    own = sorted((item for item in inputs.items if item.token == 2), key=lambda item: item.first)
    assert [item.first for item in own] == list(range(0, count * group, 8))
    assert sum(item.pairs for item in own) == count * group and all(0 < item.pairs <= 8 for item in own)
    for item in own:
        table = TABLES.ctypes.data + 2 * TABLES.strides[0]
        assert (item.start, item.table, item.part, item.slot, item.paired) == (5, table, -1, 0, 0)


@pytest.mark.parametrize(
    ("start", "count", "whole", "parts"),
    [
        (PART - 1, 1, PART, None),  # just as long as a row that stays whole
        (PART, 1, PART, 2),
        (2 * PART - 1, 1, PART, 2),
        (2 * PART, 1, PART, 3),
        (3 * PART + 5, 1, 4 * PART, None),
        (3 * PART + 5, SPLIT_TOKENS, PART, 4),
        (3 * PART + 5, SPLIT_TOKENS + 1, PART, None),  # it has items enough
    ],
)
def test_rows_that_are_split(start: int, count: int, whole: int, parts: int | None):
    """Each item has a place of its own for the result of its part: one part's behind the other."""
    inputs = prepare([(0, 4, 1), (3, start, count)], whole=whole)
    own = [item for item in inputs.items if item.token == 1]
    groups = -(-count * 3 // 8)
    if parts is None:
        assert len(own) == groups and all(item.part == -1 for item in own)
        return
    places = sorted((item.part, item.first // 8, item.slot) for item in own)
    assert places == [(part, n, parts * n + part) for part in range(parts) for n in range(groups)]


def test_places_of_the_next_row_that_is_split_come_behind():
    rows = [(0, 600, 3), (1, 1100, 1), (2, 40, 1), (3, 2000, 1)]
    slots = {item.slot for item in prepare(rows, group=4).items if item.part >= 0}
    assert slots == set(range(2 * 2 + 3 + 4))


def test_long_items_come_first():
    """By their last position; of equals none is lost."""
    inputs = prepare([(0, 10, 1), (1, 400, 1), (2, 100, 1), (3, 100, 1)], whole=LENGTH)
    assert [item.start for item in inputs.items] == [400, 100, 100, 10]
    assert sorted(item.token for item in inputs.items) == [0, 1, 2, 3]


@pytest.mark.parametrize(("joined", "made"), [(0, 4), (161, 4), (162, 3), (201, 3), (202, 2)])
def test_rows_that_begin_with_the_same_blocks_are_paired(joined: int, made: int):
    """Where both together are short enough. The second of two goes to the end of the room."""
    tables = TABLES.copy()
    tables[1, :5], tables[3, :6] = tables[0, :5], tables[2, :6]
    rows = [(0, 80, 1), (1, 80, 1), (2, 99, 1), (3, 101, 1)]
    inputs = prepare(rows, whole=LENGTH, joined=joined, tables=tables)
    assert inputs.columns["made"] == [made] and len(inputs.room) == 4
    pairs = [(item.token, item.paired) for item in inputs.items if item.paired]
    assert len(pairs) == 4 - made
    for token, address in pairs:
        number, rest = divmod(address - inputs.first, AttentionItem.size())
        other = inputs.room[number]
        assert rest == 0 and number >= made and other.token == token + 1
        assert other.shared == 16 * (5 if token == 0 else 6)
