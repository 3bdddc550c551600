"""Writes a grammar in Lark, as llguidance takes it: rules and terminals with names of their own."""

import re

ANY = r"/(.|\n)*/"
"""A pattern for any text. No special token is part of a text."""
SPACED = {
    "item_separator": ", ?",
    "key_separator": ": ?",
    "whitespace_flexible": False,
    "lenient": False,
    "coerce_one_of": False,
}
"""Options of JSON grammars: one space may follow a comma or a colon, since most models write it."""


class LarkWriter:
    """The rules and terminals that the expressions of one grammar refer to."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[str, str] = {}

    def rule(self, body: str, attributes: str = "") -> str:
        """Returns the name of a rule. attributes: such as "[lazy]"."""
        return self._named("r", f"{attributes}: {body}")

    def terminal(self, pattern: str) -> str:
        """Returns the name of a terminal. pattern: of regular expressions and texts."""
        return self._named("T", f": {pattern}")

    def grammar(self, start: str) -> str:
        """Returns the text of the grammar."""
        return "\n".join([f"start: {start}", *self._lines, ""])

    def _named(self, kind: str, rest: str) -> str:
        """Equal definitions have one name."""
        if (name := self._names.get(kind + rest)) is None:
            name = self._names[kind + rest] = f"{kind}{len(self._names)}"
            self._lines.append(name + rest)
        return name


def sequence(*parts: str) -> str:
    """Returns an expression for parts one after another; empty parts are left out."""
    return " ".join(part for part in parts if part)


def one_of(*alternatives: str) -> str:
    """Returns an expression for any of the alternatives, of which none is empty."""
    return alternatives[0] if len(alternatives) == 1 else "(" + " | ".join(alternatives) + ")"


def optional(part: str) -> str:
    """Returns an expression for a part that may be missing."""
    return f"({part})?"


def without(text: str) -> str:
    """Returns a pattern for the texts that do not contain this one."""
    return rf"~/(.|\n)*{_escaped(text)}(.|\n)*/"


def _escaped(text: str) -> str:
    """Returns the text as a part of a regular expression between slashes."""
    return re.escape(text).replace("/", r"\/").replace("\\\n", r"\n")
