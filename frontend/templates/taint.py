"""Strings that know which of their characters a client wrote.

A conversation may quote text from elsewhere. If that spells a control token, such as the one that ends a
turn, the prompt must have its letters and not the token. So all text of a request is tainted before a
template sees it, the sandbox's operations keep the taint (frontend.templates.jinja_sandbox), and a control
token counts only where the template wrote each of its characters (frontend.templates.control_tokens). A
template sees through it: a tainted string compares, searches and prints as the plain one does.

Operations whose result is not followed character by character, such as printing an object, taint all of it.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, SupportsIndex

from jinja2.runtime import Undefined
from jinja2.sandbox import SandboxedEnvironment, SandboxedFormatter

_DIRECTIVE = re.compile(r"%(?:\((?P<name>[^()]*)\))?[#0\- +]*\d*(?:\.\d+)?(?P<kind>[a-zA-Z%])")
"""A conversion of printf-style formatting; the sandbox refuses widths that are arguments."""


class Tainted(str):
    """A string with one byte per character: 1 where a client wrote it."""

    __slots__ = ("_taint",)
    _taint: bytes

    def __new__(cls, text: str, taint: bytes) -> "Tainted":
        """taint: of the length of the text."""
        self = super().__new__(cls, text)
        self._taint = taint
        return self

    @property
    def plain(self) -> str:
        """The text without the taint."""
        return str.__str__(self)

    @property
    def written(self) -> Iterator[tuple[int, int]]:
        """Start and end of each run of characters that no client wrote."""
        return (found.span() for found in re.finditer(rb"\0+", self._taint))

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> "Tainted":
        return Tainted(str.__add__(self, other), self._taint + taint_of(other))

    def __radd__(self, other: str) -> "Tainted":
        return Tainted(str.__add__(other, self), taint_of(other) + self._taint)

    def __mul__(self, count: SupportsIndex) -> "Tainted":
        return Tainted(str.__mul__(self, count), self._taint * count)

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> "Tainted":
        text = str.__getitem__(self, key)  # raises what a plain string raises
        part = key if isinstance(key, slice) else slice(int(key), int(key) + 1 or None)
        return Tainted(text, self._taint[part])

    def __iter__(self) -> Iterator[str]:
        return map(Tainted, str.__iter__(self), (bytes((each,)) for each in self._taint))

    def join(self, items: Iterable[str]) -> "Tainted":
        items = list(items)
        return Tainted(str.join(self, items), self._taint.join(map(taint_of, items)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> "Tainted":
        """Replaces; what replaces a client's characters is tainted."""
        if not old or b"\0" not in self._taint:
            return tainted(str.replace(self, old, new, count))
        first, *rest = self.split(old, count)
        pieces, at = [first], len(first)
        for part in rest:
            pieces += (tainted(new) if 1 in self._taint[at : at + len(old)] else new), part
            at += len(old) + len(part)
        return _EMPTY.join(pieces)

    def lstrip(self, chars: str | None = None) -> "Tainted":
        return self[len(self) - len(str.lstrip(self, chars)) :]

    def rstrip(self, chars: str | None = None) -> "Tainted":
        return self[: len(str.rstrip(self, chars))]

    def strip(self, chars: str | None = None) -> "Tainted":
        return self.lstrip(chars).rstrip(chars)

    def removeprefix(self, prefix: str) -> "Tainted":
        return self[len(self) - len(str.removeprefix(self, prefix)) :]

    def removesuffix(self, suffix: str) -> "Tainted":
        return self[: len(str.removesuffix(self, suffix))]

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.split(self, sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(str.rsplit(self, sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[str]:
        return self._parts(str.splitlines(self, keepends), None)

    def partition(self, sep: str) -> tuple[str, str, str]:
        before, found, after = self._parts(str.partition(self, sep), "")
        return before, found, after

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        before, found, after = self._parts(str.rpartition(self, sep), "")
        return before, found, after

    def _parts(self, parts: Iterable[str], sep: str | None) -> list[str]:
        """Returns substrings in their order, with taint. sep: between them; None: characters of no part."""
        if b"\0" not in self._taint:
            return [Tainted(part, self._taint[: len(part)]) for part in parts]
        found: list[str] = []
        at = 0
        for part in parts:
            start = str.find(self, part, at) if sep is None else at
            end = start + len(part)
            found.append(self[start:end])
            at = end + len(sep or "")
        return found


_EMPTY = Tainted("", b"")


def tainted(text: str) -> Tainted:
    """Returns a text that a client wrote."""
    return Tainted(text, b"\1" * len(text))


def taint_of(text: str) -> bytes:
    """Returns a byte per character: 1 where a client wrote it."""
    return text._taint if isinstance(text, Tainted) else bytes(len(text))


def is_clean(value: Any) -> bool:
    """Returns whether nothing in a value is a client's, as far as can be seen."""
    if isinstance(value, Mapping):
        return all(map(is_clean, value.keys())) and all(map(is_clean, value.values()))
    if isinstance(value, list | tuple):
        return all(map(is_clean, value))
    return value is None or (
        isinstance(value, str | int | float | Undefined) and not isinstance(value, Tainted)
    )


def kept(result: Any, *sources: Any) -> Any:
    """Returns an operation's result, tainted if it is a string that does not tell what is a client's and
    one of its sources may be."""
    if isinstance(result, str) and not isinstance(result, Tainted) and not all(map(is_clean, sources)):
        return tainted(result)
    return result


def shown(value: Any) -> Any:
    """Returns a value that is printed; all of an object's text counts as a client's."""
    plain = value is None or isinstance(value, str | int | float | Undefined)
    return value if plain else tainted(str(value))


def method_of(owner: str, name: str) -> Callable[..., Any]:
    """Returns a method of a plain string that keeps the taint of its arguments."""
    method: Callable[..., Any] = getattr(_lifted(owner), name)
    return method


def percent(template: str, arguments: Any) -> str:
    """Returns `template % arguments`."""
    whole = str.__mod__(template, arguments)
    if is_clean(template) and is_clean(arguments):
        return whole
    rest = iter(arguments if isinstance(arguments, tuple) else (arguments,))
    pieces: list[str] = []
    at = 0
    for found in _DIRECTIVE.finditer(template):
        pieces.append(template[at : found.start()])
        at = found.end()
        if found["kind"] == "%":
            pieces.append("%")
            continue
        value = next(rest) if found["name"] is None else arguments[found["name"]]
        given = (value,) if found["name"] is None else {found["name"]: value}
        pieces.append(kept(str.__mod__(found[0], given), value))
    return _agreed(whole, [*pieces, template[at:]])


class FollowingFormatter(SandboxedFormatter):
    """`str.format`, which keeps the taint of what it puts in."""

    def __init__(self, environment: SandboxedEnvironment) -> None:
        super().__init__(environment)
        self._pieces: list[str] = []

    def parse(self, format_string: str) -> Iterator[Any]:
        """Notes the text between fields."""
        for literal, *rest in super().parse(format_string):
            self._pieces.append(kept(literal, format_string))
            yield literal, *rest

    def convert_field(self, value: Any, conversion: Any) -> Any:
        """Returns the repr of a client's text as a client's."""
        return kept(super().convert_field(value, conversion), value)

    def format_field(self, value: Any, format_spec: str) -> Any:
        """Notes the text of a field."""
        text = super().format_field(value, format_spec)
        self._pieces.append(kept(str(text), value))
        return text

    def result(self, whole: str) -> str:
        """Returns what the formatter has returned, with taint."""
        return _agreed(whole, self._pieces)


def _agreed(whole: str, pieces: list[str]) -> str:
    """Returns the pieces, joined; all of it is tainted where they are not the whole."""
    joined = _EMPTY.join(pieces)
    return joined if joined == whole else tainted(whole)


def _lifted(text: str) -> Tainted:
    return text if isinstance(text, Tainted) else Tainted(text, bytes(len(text)))


def _follow(name: str) -> None:
    """Defines a method that changes characters one by one, or the whole."""
    method = getattr(str, name)

    def followed(self: Tainted, *args: Any, **kwargs: Any) -> str:
        text: str = method(self, *args, **kwargs)
        return Tainted(text, self._taint) if name in _ONE_BY_ONE and len(text) == len(self) else tainted(text)

    followed.__name__ = name
    setattr(Tainted, name, followed)


_ONE_BY_ONE = frozenset({"capitalize", "casefold", "lower", "swapcase", "title", "upper"})
_WHOLE = frozenset({"center", "expandtabs", "ljust", "rjust", "zfill"})
for _name in _ONE_BY_ONE | _WHOLE:
    _follow(_name)
