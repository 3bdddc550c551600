"""Reads the arguments of a call that are written as pairs of name and value, as they arrive."""

import functools
import json
import re

from frontend.answers.tables import PairNotation
from frontend.answers.values import paired_value

_LEVELS = 3
"""Brackets within brackets that are read in one go."""


@functools.cache
def _runs(quotes: tuple[str, ...], escapes: bool) -> tuple[re.Pattern[str], re.Pattern[str]] | None:
    """Returns what stands between marks, with all strings and brackets that have ended.

    The first is for text outside of brackets, where a comma is a mark, the second for text within them. They
    do not backtrack. None for quotes of several characters.
    """
    if any(len(quote) > 1 for quote in quotes):
        return None
    strings = [
        rf"{quote}(?:[^{quote}\\]++|\\[\s\S])*+{quote}" if escapes else f"{quote}[^{quote}]*+{quote}"
        for quote in map(re.escape, quotes)
    ]
    plain = re.escape("".join(quotes)) + r"()\[\]{}"
    within = "|".join([f"[^{plain}]++", *strings])
    for _ in range(_LEVELS):
        brackets = rf"[(\[{{](?:{within})*+[)\]}}]"
        within = "|".join([f"[^{plain}]++", *strings, brackets])
    outside = "|".join([f"[^{plain},]++", *strings, brackets])
    return re.compile(f"(?:{outside})*+"), re.compile(f"(?:{within})*+")


@functools.cache
def _outside(quotes: tuple[str, ...]) -> re.Pattern[str]:
    """Returns what is looked for outside of strings."""
    return re.compile("|".join([*map(re.escape, quotes), r"[()\[\]{},]"]))


@functools.cache
def _inside(quote: str, escapes: bool) -> re.Pattern[str]:
    """Returns what is looked for in a string."""
    return re.compile((r"\\[\s\S]|" if escapes else "") + re.escape(quote))


class PairReader:
    """The arguments of one call, from behind the opening character to the closing one."""

    def __init__(self, notation: PairNotation) -> None:
        self.done = False
        self._notation = notation
        self._piece: list[str] = []  # of the pair that is being read
        self._depth = 0
        self._quote: str | None = None
        self._written = ObjectWriter()
        self._runs = _runs(notation.quotes, notation.escapes)

    def feed(self, text: str) -> tuple[int, str]:
        """Reads on; returns the number of characters that were read, and the JSON text that they complete.

        What may be the first half of a mark is not read.
        """
        at, written = 0, ""
        while at < len(text) and not self.done:
            if self._quote is None and self._runs is not None:
                run = self._runs[self._depth > 0].match(text, at)
                if run is not None and run.end() > at:
                    self._piece.append(run[0])
                    at = run.end()
                    continue
                if text[at] not in self._notation.quotes:
                    at += 1
                    written += self._mark(text[at - 1])
                    continue
            found = self._pattern().search(text, at)
            if found is None:
                end = len(text) - self._undecided(text, at)
                self._piece.append(text[at:end])
                return end, written
            self._piece.append(text[at : found.start()])
            at = found.end()
            written += self._mark(found[0])
        return at, written

    def _pattern(self) -> re.Pattern[str]:
        """Returns what is looked for next."""
        if self._quote is None:
            return _outside(self._notation.quotes)
        return _inside(self._quote, self._notation.escapes)

    def _undecided(self, text: str, at: int) -> int:
        """Returns the length of the longest end of the text that a mark may begin with."""
        marks = list(self._notation.quotes)
        if self._notation.escapes and self._quote is not None:
            return 1 if text.endswith("\\") else 0
        longest = max(map(len, marks)) - 1
        for length in range(min(longest, len(text) - at), 0, -1):
            if any(mark.startswith(text[-length:]) for mark in marks):
                return length
        return 0

    def _mark(self, mark: str) -> str:
        if self._quote is not None:
            self._piece.append(mark)
            if mark == self._quote:
                self._quote = None
        elif mark in self._notation.quotes:
            self._piece.append(mark)
            self._quote = mark
        elif not self._depth and mark in (",", self._notation.close):
            self.done = mark != ","
            return self._end_pair() + (self._written.end() if self.done else "")
        else:
            self._piece.append(mark)
            self._depth += 1 if mark in "([{" else -1 if mark in ")]}" and self._depth else 0
        return ""

    def _end_pair(self) -> str:
        text = "".join(self._piece)
        self._piece.clear()
        if not text.strip():
            return ""
        key, separator, value = text.partition(self._notation.separator)
        if not separator:
            return ""
        return self._written.add(key.strip().strip("\"'"), paired_value(value, self._notation))


_ENCODER = json.JSONEncoder(ensure_ascii=False)


class ObjectWriter:
    """Writes a JSON object, member by member."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def add(self, name: str, value: object) -> str:
        """Returns the JSON text of one more member; empty for a name that was there before."""
        if name in self._names:
            return ""
        begin = ", " if self._names else "{"
        self._names.add(name)
        text = str(value) if type(value) is int else _ENCODER.encode(value)
        return f"{begin}{_ENCODER.encode(name)}: {text}"

    @property
    def begun(self) -> bool:
        """True when there is a member."""
        return bool(self._names)

    def end(self) -> str:
        """Returns the rest of the text."""
        return "}" if self._names else "{}"
