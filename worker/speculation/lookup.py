"""Drafts what followed the row's last tokens when they occurred before, in its prompt or its output.

A text that repeats itself from its last p tokens on is drafted to repeat them on and on. A text in which
nothing has occurred before for 64 tokens is looked up at every other token, then at every third, and at every
eighth at last, until something is found.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from worker.speculation.ngram_index import NgramIndex, Read
from worker.step.rows import RowTable

REST_BEGINS = 64
"""Tokens without a match behind each of which lookups are one token farther apart."""
MOST_SKIPPED = 7
"""Tokens between two lookups."""


@dataclass(slots=True)
class _Text:
    index: NgramIndex
    read: Read
    found_at: int  # tokens of the text at the last match; at first, when it was first looked up
    looks_at: int = 0  # tokens of the text from which on it is looked up


class LookupDrafter:
    """A worker.speculation.drafter.Drafter. A row's text is indexed when it is drafted for."""

    is_free = True
    computed_prompts = False

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._texts: dict[int, _Text] = {}

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        return [self._look_up(row, length) for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        self._texts.pop(row, None)

    def _look_up(self, row: int, most: int) -> list[int]:
        end = int(self._rows.num_tokens[row])
        text = self._texts.get(row) or self._begin(row, end)
        if end < text.looks_at:
            return []
        text.index.extend(end, text.read)
        found = text.index.find()
        if not found:
            text.looks_at = end + 1 + min(MOST_SKIPPED, (end - text.found_at) // REST_BEGINS)
            return []
        text.found_at = end
        drafted = list(text.read(found, min(found + most, end)))
        while len(drafted) < most:
            drafted += drafted[: most - len(drafted)]
        return drafted

    def _begin(self, row: int, end: int) -> _Text:
        token_ids = self._rows.token_ids[row]

        def read(start: int, stop: int) -> Sequence[int]:
            tokens: list[int] = token_ids[start:stop].tolist()
            return tokens

        text = self._texts[row] = _Text(NgramIndex(), read, found_at=end)
        return text
