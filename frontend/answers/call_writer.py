"""Writes the events of calls: start, arguments, end. Knows whether JSON text ends within a string."""

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from typing import Any

from frontend.answers.events import Arguments, CallEnd, CallStart, EventSink
from frontend.answers.pairs import ObjectWriter
from frontend.answers.tables import ValueStyle
from frontend.answers.values import is_object, types_of, value_of

_ESCAPED = re.compile(r"\\.", re.DOTALL)
Schemas = Mapping[str, Mapping[str, Any]]
"""Name of a tool -> the schemas of its arguments, by name."""


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


class CallWriter:
    """The calls of one answer, one after another."""

    def __init__(self, sink: EventSink, schemas: Schemas, new_id: Callable[[int], str]) -> None:
        """new_id: returns the id of a call that has none of its own."""
        self.is_open = False
        self._sink = sink
        self._schemas = schemas
        self._new_id = new_id
        self._index = 0
        self._name = ""
        self._text: list[str] = []  # arguments of the open call
        self._members = ObjectWriter()
        self._ids: set[str] = set()
        self._quoting = Quoting()
        self._num_quoted = 0  # pieces of the arguments that self._quoting is behind

    @property
    def has_arguments(self) -> bool:
        """True when the open call has text of its arguments."""
        return bool(self._text)

    def start(self, name: str, own_id: str = "") -> None:
        self.is_open, self._name = True, name
        self._text.clear()
        self._members = ObjectWriter()
        self._sink.mark()
        call_id = own_id if own_id and own_id not in self._ids else self._new_id(self._index)
        self._ids.add(call_id)
        self._quoting, self._num_quoted = Quoting(), 0
        self._sink.add(CallStart(self._index, call_id, name))

    def write(self, text: str) -> None:
        """Adds JSON text to the arguments."""
        if not self._text:
            text = text.lstrip()
        if text:
            self._text.append(text)
            self._sink.add(Arguments(self._index, text))

    def in_string(self, text: str) -> bool:
        """Returns whether the arguments, and then this text, end within a string."""
        self._quoting = self._quoting.after("".join(self._text[self._num_quoted :]))
        self._num_quoted = len(self._text)
        return self._quoting.after(text).in_string

    def schema_of(self, key: str) -> Mapping[str, Any] | None:
        """Returns the schema of an argument of the open call; None: it has none."""
        known = self._schemas.get(self._name)
        return known.get(key) if known is not None else None

    def member(self, key: str, text: str, style: ValueStyle) -> None:
        """Adds one argument, whose value is written as a bare text."""
        text = text.removeprefix("\n").removesuffix("\n")
        self.write(self._members.add(key, value_of(text, style, self.schema_of(key))))

    def end(self, *, cut: bool = False, lost: bool = False) -> None:
        """Ends the call, which is complete if its arguments are a JSON object that has all that was written.

        cut: in the middle of its arguments. lost: something that was written is in none of them.
        """
        if not cut and (self._members.begun or not self._text):
            self.write(self._members.end())
        complete = not cut and not lost and not self._members.lost and is_object("".join(self._text))
        self._sink.add(CallEnd(self._index, complete))
        self._index += 1
        self.is_open = False
        self._text.clear()
