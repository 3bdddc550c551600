"""Reads the arguments of a call that are written as pairs of name and value, as they arrive."""

import functools
import json
import re
from collections.abc import Callable
from typing import Any

from frontend.answers.tables import PairNotation
from frontend.answers.values import NAMES, json_value, literal

_LEVELS = 3
"""Brackets within brackets that are read in one go."""
_KEY = re.compile(r"[\w$][\w$.\- ]*+")


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

    def __init__(self, notation: PairNotation, spelled: Callable[[str], str] = str) -> None:
        """spelled: returns a text with special tokens as they are spelled."""
        self.done = False
        self._notation = notation
        self._spelled = spelled
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
        key = key.strip()
        for quote in self._notation.quotes:
            if key.startswith(quote) and key.endswith(quote) and len(key) >= 2 * len(quote):
                key = key.removeprefix(quote).removesuffix(quote)
        if not separator or _KEY.fullmatch(key) is None or not value.strip():
            self._written.lost = True
            return ""
        return self._written.add(key, _paired_value(value, self._notation, self._spelled))

    @property
    def lost(self) -> bool:
        """True when something that has been read is in no argument."""
        return self._written.lost


def _paired_value(text: str, notation: PairNotation, spelled: Callable[[str], str]) -> Any:
    """Returns the JSON value of one argument; text that is none is a string. spelled: as in
    PairReader."""
    try:
        if notation.escapes:
            return literal(spelled(text))
        value, end = _Unescaped(text, notation, spelled).value(0)
        if text[end:].strip():
            raise ValueError("text after the value")
        return value
    except (ValueError, RecursionError):
        return spelled(text.strip())


class _Unescaped:
    """Reads values with strings between quotes in which nothing is escaped."""

    def __init__(self, text: str, notation: PairNotation, spelled: Callable[[str], str]) -> None:
        self._text = text
        self._quote, self._separator = notation.quotes[0], notation.separator
        self._spelled = spelled

    def value(self, at: int) -> tuple[Any, int]:
        """Returns the value that begins here, and where it ends. Raises ValueError."""
        text = self._text
        at = _skip(text, at)
        if text.startswith(self._quote, at):
            end = text.index(self._quote, at + len(self._quote))
            return self._spelled(text[at + len(self._quote) : end]), end + len(self._quote)
        if text.startswith("[", at):
            return self._list(at + 1)
        if text.startswith("{", at):
            return self._object(at + 1)
        end = at
        while end < len(text) and text[end] not in ",]}":
            end += 1
        word = text[at:end].strip()
        return (NAMES[word] if word in NAMES else json_value(word)), end

    def _list(self, at: int) -> tuple[list[Any], int]:
        items: list[Any] = []
        while not self._text.startswith("]", at := _skip(self._text, at)):
            item, at = self.value(at)
            items.append(item)
            at = _comma(self._text, at, "]")
        return items, at + 1

    def _object(self, at: int) -> tuple[dict[str, Any], int]:
        items: dict[str, Any] = {}
        while not self._text.startswith("}", at := _skip(self._text, at)):
            colon = self._text.index(self._separator, at)
            key = self._text[at:colon].strip().removeprefix(self._quote).removesuffix(self._quote)
            items[self._spelled(key)], at = self.value(colon + len(self._separator))
            at = _comma(self._text, at, "}")
        return items, at + 1


def _comma(text: str, at: int, close: str) -> int:
    """Returns the place after a comma, or that of the closing character."""
    at = _skip(text, at)
    if text.startswith(",", at):
        return at + 1
    if text.startswith(close, at):
        return at
    raise ValueError("neither a comma nor an end")


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


_ENCODER = json.JSONEncoder(ensure_ascii=False)


class ObjectWriter:
    """Writes a JSON object, member by member."""

    def __init__(self) -> None:
        self._members: dict[str, object] = {}
        self.lost = False
        """Something has been written that is in no member."""

    def add(self, name: str, value: object) -> str:
        """Returns the JSON text of one more member; empty for a name that was there before."""
        if name in self._members:
            self.lost |= self._members[name] != value
            return ""
        begin = ", " if self._members else "{"
        self._members[name] = value
        text = str(value) if type(value) is int else _ENCODER.encode(value)
        return f"{begin}{_ENCODER.encode(name)}: {text}"

    @property
    def begun(self) -> bool:
        """True when there is a member."""
        return bool(self._members)

    def end(self) -> str:
        """Returns the rest of the text."""
        return "}" if self._members else "{}"
