"""Reads the regular expressions of stops. Pure.

The syntax is what Python, RE2 and Rust's regex have in common: characters, classes, groups, alternatives,
repetition, the flags i, s and m, and ^. What would need the text behind a match or a memory of groups ($,
\\b, look-around, back-references) is refused by name. Classes and single characters mean what they mean to
Python's re.
"""

import re
from dataclasses import dataclass

MAX_DEPTH = 32
"""Groups within one another."""
MAX_REPEAT = 1000

_CLASS_LETTERS = "dDwWsS"
_CONTROL_LETTERS = "nrtfv"
_HEX_DIGITS = {"x": 2, "u": 4}
_QUANTIFIER = re.compile(r"\{(\d{1,4})(?:(,)(\d{0,4}))?\}")
_FLAGS = re.compile(r"\(\?([ims]+)([:)])")
_NAMED_GROUP = re.compile(r"\(\?P?<[A-Za-z_]\w*>", re.ASCII)
_SHORT: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_BEHIND = "is not supported: a stop is decided by the text up to it"


class RegexError(ValueError):
    """An expression is not supported. Its text says what is wrong where; index: which of several it is."""

    def __init__(self, what: str, index: int = 0) -> None:
        super().__init__(what)
        self.index = index


@dataclass(frozen=True, slots=True)
class Single:
    """One character. source: a character or class as Python's re has it."""

    source: str
    flags: int


@dataclass(frozen=True, slots=True)
class Beginning:
    """Where the text begins; with `lines`, also behind a line feed."""

    lines: bool


@dataclass(frozen=True, slots=True)
class Series:
    """Parts behind one another."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Either:
    """One of several parts."""

    parts: "tuple[Part, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part several times. most: None: without end."""

    part: "Part"
    least: int
    most: int | None


Part = Single | Beginning | Series | Either | Repeat


def parse(source: str) -> Part:
    """Returns the parts of an expression. Raises RegexError."""
    reader, flags = _Reader(source), 0
    if (found := _FLAGS.match(source)) and found[2] == ")":
        reader.place, flags = found.end(), _flags(found[1])
    part = reader.either(flags, 0)
    if reader.place < len(source):
        raise reader.error("')' closes no group")
    return part


@dataclass(slots=True)
class _Reader:
    """A recursive descent. The methods read from `place` on, and leave it behind what they have read."""

    source: str
    place: int = 0

    def error(self, what: str) -> RegexError:
        return RegexError(f"{what} at character {self.place + 1}")

    def either(self, flags: int, depth: int) -> Part:
        if depth > MAX_DEPTH:
            raise self.error(f"more than {MAX_DEPTH} groups within one another")
        parts = [self.series(flags, depth)]
        while self._take("|"):
            parts.append(self.series(flags, depth))
        return parts[0] if len(parts) == 1 else Either(tuple(parts))

    def series(self, flags: int, depth: int) -> Part:
        parts: list[Part] = []
        while self.place < len(self.source) and self.source[self.place] not in "|)":
            parts.append(self._repeated(self.part(flags, depth)))
        return parts[0] if len(parts) == 1 else Series(tuple(parts))

    def part(self, flags: int, depth: int) -> Part:
        character = self.source[self.place]
        if character == "(":
            return self._group(flags, depth)
        if character == "[":
            return Single(self._class(), flags)
        if character == "\\":
            return Single(self._escape(), flags)
        if character in _SHORT or _QUANTIFIER.match(self.source, self.place):
            raise self.error(f"'{character}' repeats nothing")
        if self.source.startswith("{,", self.place):
            raise self.error("'{,' names no least number")
        if character == "$":
            raise self.error(f"'$' {_BEHIND},")
        self.place += 1
        if character == "^":
            return Beginning(bool(flags & re.MULTILINE))
        return Single("." if character == "." else re.escape(character), flags)

    def _take(self, text: str) -> bool:
        if not self.source.startswith(text, self.place):
            return False
        self.place += len(text)
        return True

    def _group(self, flags: int, depth: int) -> Part:
        opened = self.place
        if found := _FLAGS.match(self.source, self.place):
            if found[2] == ")":
                raise self.error(f"'{found[0]}' must stand at the beginning")
            self.place = found.end()
            flags |= _flags(found[1])
        elif found := _NAMED_GROUP.match(self.source, self.place):
            self.place = found.end()
        elif not self._take("(?:"):
            if self.source.startswith(("(?", "(*"), self.place):
                raise self.error(f"'{self.source[self.place : self.place + 3]}' is not supported")
            self.place += 1
        part = self.either(flags, depth + 1)
        if not self._take(")"):
            self.place = opened
            raise self.error("a group is not closed")
        return part

    def _escape(self) -> str:
        """Returns an escaped character or class of characters."""
        start = self.place
        letter = self.source[start + 1 : start + 2]
        size = _HEX_DIGITS.get(letter, 0)
        digits = self.source[start + 2 : start + 2 + size]
        if size and not re.fullmatch(f"[0-9a-fA-F]{{{size}}}", digits):
            raise self.error(f"'\\{letter}' needs {size} hexadecimal digits")
        if not letter:
            raise self.error("nothing follows '\\'")
        if letter in "bBAzZG":
            raise self.error(f"'\\{letter}' {_BEHIND},")
        if letter.isalnum() and not size and letter not in _CLASS_LETTERS + _CONTROL_LETTERS:
            raise self.error(f"'\\{letter}' is not supported")
        self.place += 2 + size
        return self.source[start : self.place] if letter.isalnum() else re.escape(letter)

    def _class(self) -> str:
        """Returns a class of characters, such as [^a-z]."""
        start = self.place
        self.place += 2 if self.source.startswith("[^", start) else 1
        text = self.source[start : self.place]
        if self._take("]"):  # the first one is a character
            text += "\\]"
        while not self._take("]"):
            if self.place >= len(self.source):
                self.place = start
                raise self.error("a class is not closed")
            text += self._class_member()
        try:
            re.compile(text + "]")
        except re.error as error:
            self.place = start
            raise self.error(f"a class is not valid ({error.msg})") from None
        return text + "]"

    def _class_member(self) -> str:
        character = self.source[self.place]
        if character == "\\":
            return self._escape()
        if character == "[" or self.source[self.place : self.place + 2] in ("--", "&&", "~~", "||"):
            raise self.error(f"'{character}' in a class must be escaped")
        self.place += 1
        return character

    def _repeated(self, part: Part) -> Part:
        """Returns a part with the quantifier that follows it."""
        if found := _QUANTIFIER.match(self.source, self.place):
            least = int(found[1])
            most = least if not found[2] else int(found[3]) if found[3] else None
            if max(least, most or 0) > MAX_REPEAT or (most is not None and most < least):
                raise self.error(f"'{found[0]}' must count up, to at most {MAX_REPEAT},")
            self.place = found.end()
        elif self.source[self.place : self.place + 1] in _SHORT:
            least, most = _SHORT[self.source[self.place]]
            self.place += 1
        else:
            return part
        self._take("?")  # lazy: where a stop ends does not depend on it
        if self.source[self.place : self.place + 1] in _SHORT or _QUANTIFIER.match(self.source, self.place):
            raise self.error("a repetition is repeated")
        return Repeat(part, least, most)


def _flags(letters: str) -> int:
    return sum({"i": re.IGNORECASE, "m": re.MULTILINE, "s": re.DOTALL}[letter] for letter in set(letters))
