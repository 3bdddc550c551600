"""The list of what attention computes against its definition, item by item; what each row's share is."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from kernels.ops.attention.gather_plan import first_seen
from kernels.triton.attention.work_list import WorkList, WorkShape, make_work_list
from tests.kernels.triton.references import work_list_reference

Rows = list[tuple[int, int]]
PLAIN = WorkShape(queries=4, num_kv=2, programs=16, capacity=1000, shared_items=1000, chunk=64)
SHAPES = {
    "plain": PLAIN,
    "window": replace(PLAIN, window=100),
    "chunks": replace(PLAIN, window=100, chunked=True),
    "little room": replace(PLAIN, capacity=30),
    "no room": replace(PLAIN, capacity=0),
    "all that have two": replace(PLAIN, most=1),
    "a share that is odd": replace(PLAIN, most=3),
}
ROWS: dict[str, Rows] = {
    "one long row": [(1, 40), (1, 9000), *[(1, 70)] * 6],
    "a piece behind a long context": [(1, 100), (23, 5000), (1, 3)],
    "a prompt": [(300, 300)],
    "padding": [(1, 800), (1, 0), (0, 0)],
    "much padding": [(1, 800), (1, 0), (37, 0)],
    "as drafts are verified": [(3, 500), (4, 1200), (1, 64), (5, 65)],
}
"""Tokens of a step, and those of the context with them."""


def made(rows: Rows, shape: WorkShape, device: torch.device) -> tuple[WorkList, int]:
    """Returns the list, and T."""
    counts, lengths = zip(*rows, strict=True)
    starts = np.concatenate([[0], np.cumsum(counts)])
    tokens = int(starts[-1])

    def column(values: object) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    return make_work_list(column(starts), column(lengths), tokens, shape), tokens


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", ROWS)
def test_equals_the_definition(device: torch.device, rows: str, shape: str):
    counts, lengths = map(list, zip(*ROWS[rows], strict=True))
    work, tokens = made(ROWS[rows], SHAPES[shape], device)
    items, places = work_list_reference(counts, lengths, SHAPES[shape])
    count = int(work.count)
    assert list(map(tuple, work.items[:count].tolist())) == items
    assert list(map(tuple, work.places.tolist())) == places
    shared = {row for row, _, _, splits in items if splits > 1}
    expected = [row if row in shared else -1 for row, count in enumerate(counts) for _ in range(count)]
    assert work.token_rows.tolist() == expected and len(expected) == tokens


def test_every_chunk_of_every_piece_is_computed_once():
    """Whatever is shared."""
    for rows in ROWS.values():
        counts, lengths = map(list, zip(*rows, strict=True))
        for shape in SHAPES.values():
            items, places = work_list_reference(counts, lengths, shape)
            computed = [
                (row, piece, chunk)
                for row, piece, split, splits in items
                for chunk in range(split, max(1, places[row][1]), splits)
            ]
            expected = {
                (row, piece, chunk)
                for row, count in enumerate(counts)
                for piece in range(-(-count // shape.queries))
                for chunk in range(max(1, places[row][1]))
            }
            assert len(computed) == len(set(computed)) and set(computed) == expected


def test_results_of_chunks_have_places_of_their_own():
    """Within the room that there is."""
    for rows in ROWS.values():
        counts, lengths = map(list, zip(*rows, strict=True))
        for shape in SHAPES.values():
            items, places = work_list_reference(counts, lengths, shape)
            taken = [
                places[row][0] + token * places[row][1] + chunk
                for row in {row for row, _, _, splits in items if splits > 1}
                for token in range(counts[row])
                for chunk in _seen(counts[row], lengths[row], shape)
            ]
            assert len(taken) == len(set(taken))
            assert not taken or (min(taken) >= 0 and max(taken) < shape.capacity)


def _seen(count: int, length: int, shape: WorkShape) -> range:
    first = max(0, length - count)
    if shape.window is not None:
        first = first // shape.window * shape.window if shape.chunked else max(0, first - shape.window + 1)
    return range(first // shape.chunk if shape.window else 0, -(-length // shape.chunk))


@pytest.mark.parametrize("seed", range(20))
def test_no_item_is_much_longer_than_a_fair_share(seed: int):
    """And the list fits into what a grid has room for: 3 * programs / K items of shared rows."""
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 1 << int(random.integers(4, 17)), int(random.integers(1, 60))).tolist()
    counts = [int(random.integers(1, min(length, 40) + 1)) for length in lengths]
    shape = WorkShape(queries=16, num_kv=8, programs=264, capacity=1 << 30, shared_items=0, chunk=512)
    items, places = work_list_reference(counts, lengths, shape)
    pieces = [-(-count // 16) for count in counts]
    work = sum(number * chunks for number, (_, chunks) in zip(pieces, places, strict=True))
    fair = max(1, -(-work * 8 // 264))
    assert max(-(-places[row][1] // splits) for row, _, _, splits in items) <= fair
    shared = [item for item in items if item[3] > 1]
    assert len(shared) <= 3 * 33 and len(items) - len(shared) <= sum(counts) // 16 + len(counts)


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("window", [1, 64, 65, 130])
def test_chunks_begin_with_the_first_position_that_is_seen(window: int, chunked: bool, device: torch.device):
    """Of the row's first token, at the edges of chunks of 64 positions; and so says the definition."""
    shape = replace(PLAIN, window=window, chunked=chunked, most=1)
    rows = [(count, length) for length in (1, 64, 65, 127, 128, 129, 192, 193, 259) for count in (1, 3)]
    rows = [(min(count, length), length) for count, length in rows]
    counts, lengths = map(list, zip(*rows, strict=True))
    work, _ = made(rows, shape, device)
    base, expected = 0, []
    for count, length in rows:
        begin = int(first_seen(np.array(length - count), window, chunked)) // 64
        chunks = -(-length // 64) - begin
        expected.append((base - begin, chunks))
        base += count * chunks if chunks > 1 else 0
    assert (
        list(map(tuple, work.places.tolist())) == work_list_reference(counts, lengths, shape)[1] == expected
    )


@pytest.mark.parametrize(
    ("capacity", "splits"), [(12, [2, 4, 6]), (11, [1, 4, 6]), (9, [1, 1, 3]), (5, [1] * 3)]
)
def test_a_fair_share_is_doubled_until_results_have_a_place(
    capacity: int, splits: list[int], device: torch.device
):
    """Rows of 2, 4 and 6 chunks, of which those of more than 1, 2, 4 and 8 are shared."""
    shape = replace(PLAIN, most=1, capacity=capacity)
    rows = [(1, 128), (1, 256), (1, 384)]
    work, _ = made(rows, shape, device)
    found = {row: each for row, _, _, each in work.items[: int(work.count)].tolist()}
    assert [found[row] for row in range(3)] == splits
    items, _ = work_list_reference([1, 1, 1], [128, 256, 384], shape)
    assert {(row, each) for row, _, _, each in items} == set(enumerate(splits))


def test_room_for_items(device: torch.device):
    """That of whole pieces, a piece more for each row, and that of shared rows."""
    work, tokens = made([(5, 5), (3, 90)], PLAIN, device)
    assert tokens == 8 and work.items.shape == (8 // 4 + 2 + 1000, 4) and work.token_rows.shape == (8,)
