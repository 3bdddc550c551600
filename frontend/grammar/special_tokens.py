"""Texts that are tokens of their own, such as "<|im_end|>": a grammar has to name them, since its characters
are those of other tokens."""

import json
import re
from collections.abc import Mapping

_NAME = re.compile(r"<[^<>\s\[\]/\\\"]+>")
"""Tokens that Lark can name. Others are named by their ids."""


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
