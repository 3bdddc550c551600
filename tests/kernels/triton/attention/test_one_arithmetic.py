"""What attention gives for a query depends on its position and on what it sees, and on nothing else: bit for
bit."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from kernels.ops.attention.e4m3 import E4M3
from kernels.triton.attention import paged_attention as launcher
from kernels.triton.attention.fp8 import unit_scales
from kernels.triton.attention.paged_attention import PagedBatch, paged_attention
from tests.kernels.attention_cases import Case
from tests.kernels.triton.attention.test_paged_attention import to_device

LENGTH = 70
"""Of the row that is compared: three chunks of two tiles."""
OTHERS = [(40, 1), (0, 1), (33, 1), (3, 4)]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "window": {"window": 37},
    "chunks": {"window": 40, "chunked": True},
    "sinks, cap": {"sinks": torch.tensor([-3.0, 2.5]), "soft_cap": 0.9},
    "slopes": {"slopes": torch.tensor([0.5, 0.0625])},
    "8 bits": {"scales": unit_scales(1, torch.device("cpu"))},
}
pytestmark = pytest.mark.usefixtures("shorter_chunks")


@pytest.fixture
def shorter_chunks(short_chunks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 32 positions."""
    for module in ("attention_sizes", "merge_chunks", "paged_attention"):
        monkeypatch.setattr(f"kernels.triton.attention.{module}.CHUNK", short_chunks // 2)


class Row:
    """The prompt of one row beside others', in any pieces."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.case = Case([*OTHERS, (0, LENGTH)], torch.float32, 2, 1, block_size=16)
        self.whole, self._options = to_device(self.case, torch.device("cpu")), options
        if "scales" in options:
            self.case.key_cache, self.case.value_cache = (
                x.to(E4M3) for x in (self.case.key_cache, self.case.value_cache)
            )
        self.query = self.case.query[-LENGTH:]
        self.expected = self.compute(0, LENGTH)

    def _attend(self, query: torch.Tensor, batch: PagedBatch, most_chunks: int | None) -> torch.Tensor:
        caches = self.case.key_cache, self.case.value_cache
        return paged_attention(
            query, *caches, batch, self.case.scale, most_chunks=most_chunks, **self._options
        )

    def compute(self, start: int, count: int, most_chunks: int | None = 9) -> torch.Tensor:
        """Tokens of the row by themselves."""
        table = self.whole.block_tables[-1:]
        starts, lengths = (torch.tensor(x, dtype=torch.int32) for x in ([0, count], [start + count]))
        batch = PagedBatch(starts, lengths, table, LENGTH)
        return self._attend(self.query[start : start + count], batch, most_chunks)

    def last_in_a_crowd(self, others: list[int], most_chunks: int | None) -> torch.Tensor:
        """Its last token, decoding behind these rows, each with one token."""
        rows, ends = [*others, -1], self.whole.query_starts[1:].long() - 1
        starts = torch.arange(len(rows) + 1, dtype=torch.int32)
        tables, lengths = self.whole.block_tables[rows], self.whole.lengths[rows]
        batch = PagedBatch(starts, lengths, tables, LENGTH)
        return self._attend(self.case.query[ends[rows]], batch, most_chunks)[-1]


@pytest.fixture(scope="module")
def make_row() -> Callable[[str], Row]:
    """By the name of options; each is made once."""
    made: dict[str, Row] = {}

    def make(name: str) -> Row:
        if name not in made:
            made[name] = Row(OPTIONS[name])
        return made[name]

    return make


@pytest.mark.parametrize("options", OPTIONS)
def test_pieces(make_row: Callable[[str], Row], options: str):
    """Of a prompt, by one program and by several; and several tokens, as when drafts are verified."""
    row = make_row(options)
    for start, count in ((29, 9), (51, LENGTH - 51)):
        expected = row.expected[start : start + count]
        for most_chunks in (9, 1):
            assert torch.equal(row.compute(start, count, most_chunks), expected)
        assert torch.equal(row.compute(start + count - 3, 3, most_chunks=2), expected[-3:])


@pytest.mark.parametrize("options", OPTIONS)
def test_tokens_that_decode(make_row: Callable[[str], Row], options: str):
    """At the borders of tiles and chunks; any number of programs shares the row."""
    row = make_row(options)
    for position, most in ((0, 9), (31, 1), (32, 9), (63, 1), (64, 2), (LENGTH - 1, 9), (LENGTH - 1, 1)):
        result = row.compute(position, 1, most)
        assert torch.equal(result[0], row.expected[position]), (position, most)


@pytest.mark.parametrize(("others", "most_chunks"), [([0], 9), ([3, 1, 2, 0], 1), ([1] * 20, None)])
def test_company(make_row: Callable[[str], Row], others: list[int], most_chunks: int | None):
    """Rows of other lengths, up to twenty."""
    row = make_row("plain")
    assert torch.equal(row.last_in_a_crowd(others, most_chunks), row.expected[-1])


@pytest.mark.parametrize("window", [None, 19])
def test_bidirectional_rows(window: int | None):
    """Whole rows, alone and in any order beside others, each computed by one program and by several."""
    counts = [1, 33, LENGTH]
    case = Case([(0, count) for count in counts], torch.float32, 2, 1, block_size=16)
    whole = to_device(case, torch.device("cpu"))
    queries = case.query.split(counts)

    def attend(rows: list[int], most_chunks: int | None) -> list[torch.Tensor]:
        lengths = whole.lengths[rows]
        starts = torch.cat((torch.zeros(1, dtype=torch.int32), lengths.cumsum(0).int()))
        batch = PagedBatch(starts, lengths, whole.block_tables[rows], LENGTH)
        query = torch.cat([queries[row] for row in rows])
        found = paged_attention(
            *(query, case.key_cache, case.value_cache, batch, case.scale, window),
            most_chunks=most_chunks,
            bidirectional=True,
        )
        return list(found.split(lengths.tolist()))

    alone = [attend([row], 9)[0] for row in range(len(counts))]
    for rows, most_chunks in (([0, 1, 2], 1), ([2, 0, 1], 9), ([2], 2)):
        for row, found in zip(rows, attend(rows, most_chunks), strict=True):
            assert torch.equal(found, alone[row]), (row, rows)


@pytest.mark.parametrize("what", ["chunk", "tile"])
def test_planted_bugs_are_found(make_row: Callable[[str], Row], what: str, monkeypatch: pytest.MonkeyPatch):
    """Chunks, or tiles, that follow from the launch."""
    row, choose = make_row("plain"), launcher.tile_sizes
    if what == "chunk":
        monkeypatch.setattr(launcher, "CHUNK", 64)
    else:
        monkeypatch.setattr(launcher, "tile_sizes", lambda *about: replace(choose(*about), tile=32))
    piece = row.compute(51, LENGTH - 51)
    assert not torch.equal(piece, row.expected[51:])
