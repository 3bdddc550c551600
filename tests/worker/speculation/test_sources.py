"""Several drafters of one executor: which of them drafts, and whose lengths a draft changes."""

from collections.abc import Sequence

import numpy as np

from worker.speculation.sources import Sources

TOKENS = np.full(8, 100)


class Scripted:
    """Drafts its token for some rows. Asked for drafts, it keeps which rows."""

    def __init__(self, token: int, rows: set[int], is_free: bool = True) -> None:
        self.token, self.rows, self.is_free = token, rows, is_free
        self.computed_prompts = not is_free
        self.asked: list[list[int]] = []

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        self.asked.append(list(rows))
        wanted = zip(rows, most, strict=True)
        return [[self.token] * length if row in self.rows else [] for row, length in wanted]

    def remove_row(self, row: int) -> None:
        self.rows.discard(row)


def test_the_first_that_has_an_idea_drafts() -> None:
    first, second = Scripted(5, {1}), Scripted(6, {1, 2})
    sources = Sources([(2, first), (1, second)], 4)
    assert sources.draft({1: 3, 2: 9, 3: 2, 4: 0}, TOKENS) == {1: [5, 5, 5], 2: [6, 6, 6, 6]}
    assert first.asked == [[1, 2, 3]] and second.asked == [[2, 3]]
    assert (sources.method(1), sources.method(2)) == (2, 1)
    assert not sources.computed_prompts


def test_what_is_not_free_is_not_asked_for_a_length() -> None:
    model = Scripted(6, {1, 2}, is_free=False)
    sources = Sources([(2, Scripted(5, {1})), (3, model)], 4)
    assert sources.foresee({1: 2, 2: 3}, TOKENS) == {1: 2, 2: 3} and not model.asked
    sources.draft({1: 2, 2: 3}, TOKENS)
    assert model.asked == [[2]] and sources.computed_prompts
    sources.draft({1: 2}, TOKENS)
    assert not sources.computed_prompts, "it was not asked this time"


def test_each_has_its_own_lengths() -> None:
    """A draft that was refused shortens those of its drafter, for its row."""
    first, second = Scripted(5, {1}), Scripted(6, {1, 2})
    sources = Sources([(2, first), (1, second)], 8)
    sources.draft({1: 8}, TOKENS)
    for length in (4, 2, 1):
        sources.judge(1, 100, length, 0)
    assert sources.draft({1: 8, 2: 8}, TOKENS) == {1: [6] * 4, 2: [6] * 4}, "the first one pauses"
    assert sources.draft({1: 8}, TOKENS + 2) == {1: [5]}
    sources.remove_row(1)
    assert sources.draft({1: 8}, TOKENS) == {}


def test_only_what_is_of_use() -> None:
    sources = Sources([(1, Scripted(5, {1, 2}))], 4, lambda row, tokens: tokens[: row - 1])
    assert sources.draft({1: 4, 2: 4}, TOKENS) == {2: [5]}
