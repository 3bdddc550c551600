"""Where the last tokens of a growing text occurred before, in O(1) per token.

    text     a b c d x y z ... a b c d
    match            ^         the place behind the earlier occurrence of what the text ends with
    again              ^       x follows here too: the match moves on, and is one token longer

Two tables hold the place behind the latest occurrence of each run of 4 and of 2 tokens. They are asked where
no match goes on, the longer runs first; a match that goes on is kept once it is as long as the longer runs.
"""

from collections.abc import Callable, Sequence

LONG, SHORT = 4, 2
MOST_TOKENS = 32_768
"""Tokens that are indexed of a text when it is met: its end. Their tables take some 16 MB."""

Read = Callable[[int, int], Sequence[int]]
"""Returns the tokens of a text from one place to another."""


class NgramIndex:
    """The index of one text."""

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
