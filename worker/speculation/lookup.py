"""Drafts what followed the row's last tokens when they occurred before, in its prompt or its output.

A text that repeats itself from its last p tokens on is drafted to repeat them on and on. A text in which
nothing has occurred before for 64 tokens is looked up at every other token, then at every third, and at every
eighth at last, until something is found.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from worker.speculation.drafter import Drafter
from worker.step.rows import RowTable

LONG, SHORT = 4, 2
"""Tokens of the runs that are looked up."""
MOST_TOKENS = 32_768
"""Tokens that are indexed of a text when it is met: its end. Their tables take some 16 MB."""

REST_BEGINS = 64
"""Tokens without a match behind each of which lookups are one token farther apart."""
MOST_SKIPPED = 7
"""Tokens between two lookups."""

Read = Callable[[int, int], Sequence[int]]
"""Returns the tokens of a text from one position to another."""


class NgramIndex:
    """Where the last tokens of a growing text occurred before, in O(1) per token.

        text     a b c d x y z ... a b c d
        match            ^         the place behind the earlier occurrence of what the text ends with
        again              ^       x follows here too: the match moves on, and is one token longer

    Two tables hold the place behind the latest occurrence of each run of 4 and of 2 tokens. They are asked
    where no match goes on, the longer runs first; a match that goes on is kept once it is as long as the
    longer runs.
    """

    def __init__(self) -> None:
        self._tables: dict[int, dict[tuple[int, ...], int]] = {LONG: {}, SHORT: {}}
        self._end = 0  # tokens that were taken
        self._tail: tuple[int, ...] = ()  # the last of these, at most LONG
        self._match = 0  # 0: none
        self._length = 0  # of the match, at least

    def extend(self, end: int, read: Read) -> None:
        """Takes the text up to its token `end`, which is not taken itself."""
        if end == self._end:
            return
        if end == self._end + 1 and self._end >= LONG:
            self._take_one(read(self._end, end), read)
            return
        first = max(self._end, end - MOST_TOKENS)
        start = max(0, first - LONG)
        tokens = read(start, end)
        if self._match:
            self._follow(tokens[first - start :], read)
        for size, table in self._tables.items():
            begin = max(start, first - size)  # the run from here on ends before the first new token, or at 0
            runs = zip(*(tokens[begin - start + i :] for i in range(size)), strict=False)
            table.update(zip(runs, range(begin + size, end), strict=False))
        self._end, self._tail = end, tuple(tokens[-LONG:])

    def find(self) -> int:
        """Returns the place behind the longest known run that the text ends with; 0: it has not occurred
        before."""
        if self._length < LONG:
            for size, table in self._tables.items():
                found = table.get(self._tail[-size:]) if size > self._length else None
                if found is not None:
                    self._match, self._length = found, size
                    break
        return self._match

    def _take_one(self, new: Sequence[int], read: Read) -> None:
        """Takes one token of a text that has LONG others, as most steps sample one."""
        for size, table in self._tables.items():
            table[self._tail[-size:]] = self._end
        if self._match:
            self._follow(new, read)
        self._end, self._tail = self._end + 1, (*self._tail[1:], *new)

    def _follow(self, new: Sequence[int], read: Read) -> None:
        """Moves the match over new tokens as long as they are those behind it."""
        expected = read(self._match, self._match + len(new))
        if list(expected) == list(new):
            self._match, self._length = self._match + len(new), self._length + len(new)
        else:
            self._match = self._length = 0


@dataclass(slots=True)
class _Text:
    index: NgramIndex
    read: Read
    found_at: int  # tokens of the text at the last match; at first, when it was first looked up
    looks_at: int = 0  # tokens of the text from which on it is looked up


class LookupDrafter(Drafter):
    """Looks up in each row's own text, which is indexed when it is drafted for."""

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
