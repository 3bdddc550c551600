"""Where JSON text ends: within a string, or outside of all strings."""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from frontend.answers.tables import ValueStyle
from frontend.answers.values import types_of

_ESCAPED = re.compile(r"\\.", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Quoting:
    """Where JSON text ends: within a string, and there behind a backslash."""

    in_string: bool = False
    escaped: bool = False
    broken: bool = False
    """A string has a line break: the text is no JSON."""

    def after(self, text: str) -> "Quoting":
        """Returns where the text ends together with this one."""
        if not text:
            return self
        plain = text[self.escaped :]
        if "\\" in plain:
            plain = _ESCAPED.sub("", plain)
        outside_first = plain.split('"')
        broken = self.broken or any("\n" in part for part in outside_first[not self.in_string :: 2])
        return Quoting(self.in_string != (len(outside_first) % 2 == 0), plain.endswith("\\"), broken)


class NestedValue:
    """The value of an argument that is an object or a list, as far as it has been read."""

    def __init__(self) -> None:
        self._first = ""
        self._quoting = Quoting()

    def add(self, text: str) -> None:
        """Reads on."""
        self._first = self._first or text.lstrip()[:1]
        self._quoting = self._quoting.after(text)

    def in_string(self, text: str) -> bool:
        """Returns whether the value, and then this text, end within a string of JSON."""
        quoting = self._quoting.after(text)
        first = self._first or text.lstrip()[:1]
        return first in ("{", "[") and quoting.in_string and not quoting.broken


def nested_value(styles: Set[ValueStyle], schema: Mapping[str, Any] | None) -> NestedValue | None:
    """Returns the reader of an argument that is an object or a list; None: it may be anything else.

    styles: in which its value may be written. schema: of the argument; None: unknown.
    """
    if ValueStyle.JSON in styles:
        return NestedValue()
    types = types_of(schema or {}) - {"null"}
    is_nested = ValueStyle.BY_SCHEMA in styles and types and types <= {"object", "array"}
    return NestedValue() if is_nested else None
