"""Drafts what followed the row's last tokens when they occurred before, in its prompt or its output.

A text that repeats itself from its last p tokens on is drafted to repeat them on and on.
"""

from collections.abc import Sequence

from worker.speculation.ngram_index import NgramIndex, Read
from worker.step.rows import RowTable


class LookupDrafter:
    """A worker.speculation.drafter.Drafter. A row's text is indexed when it is drafted for."""

    is_free = True
    computed_prompts = False

    def __init__(self, rows: RowTable) -> None:
        self._rows = rows
        self._texts: dict[int, tuple[NgramIndex, Read]] = {}

    def draft(self, rows: Sequence[int], most: Sequence[int]) -> list[list[int]]:
        """See Drafter."""
        return [self._look_up(row, length) for row, length in zip(rows, most, strict=True)]

    def remove_row(self, row: int) -> None:
        """See Drafter."""
        self._texts.pop(row, None)

    def _look_up(self, row: int, most: int) -> list[int]:
        index, read = self._texts.get(row) or self._begin(row)
        end = int(self._rows.num_tokens[row])
        index.extend(end, read)
        found = index.find()
        if not found:
            return []
        drafted = list(read(found, min(found + most, end)))
        while len(drafted) < most:
            drafted += drafted[: most - len(drafted)]
        return drafted

    def _begin(self, row: int) -> tuple[NgramIndex, Read]:
        token_ids = self._rows.token_ids[row]

        def read(start: int, stop: int) -> Sequence[int]:
            tokens: list[int] = token_ids[start:stop].tolist()
            return tokens

        text = self._texts[row] = NgramIndex(), read
        return text
