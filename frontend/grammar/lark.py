"""Writes a grammar in Lark, as llguidance takes it: rules and terminals with names, and special tokens.

A text that is a token of its own, such as "<|im_end|>", is named: a grammar's characters are those of other
tokens.
"""

import json
import re
from collections.abc import Mapping

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
_NAME = re.compile(r"<[^<>\s\[\]/\\\"]+>")
"""Tokens that Lark can name. Others are named by their ids."""


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


class SpecialTokens:
    """The texts of such tokens, with their ids."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self.ids = dict(ids)
        longest_first = sorted(self.ids, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")

    def in_lark(self, text: str) -> str:
        """Returns a Lark expression for a text, in which special tokens are named; "" for an empty text."""
        parts, end = [], 0
        for match in self._pattern.finditer(text):
            parts += [_literal(text[end : match.start()]), self._name(match[0])]
            end = match.end()
        return " ".join(part for part in (*parts, _literal(text[end:])) if part)

    def first_in(self, text: str) -> str | None:
        """Returns the special token that a text begins with; None: it begins with another one."""
        match = self._pattern.match(text)
        return match[0] if match else None

    def split(self, text: str) -> tuple[str, str]:
        """Returns a text before its first special token, and from there on."""
        match = self._pattern.search(text)
        place = match.start() if match is not None else len(text)
        return text[:place], text[place:]

    def occurs_in(self, text: str) -> bool:
        """Returns whether a text contains a special token."""
        return self._pattern.search(text) is not None

    def _name(self, content: str) -> str:
        return content if _NAME.fullmatch(content) else f"<[{self.ids[content]}]>"


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False) if text else ""
