"""Keeps text that users write from becoming control tokens.

A conversation may quote text from elsewhere. If it contains the text of a special token, such as the one that
ends a turn, tokenizing the rendered conversation would let it end the turn. So special tokens in messages are
marked before rendering, and afterwards only those of the template count. (In a text prompt, special tokens
are allowed: its author writes the template.)
"""

import re
import secrets

from tokenizers import AddedToken

from frontend.text.tokenizer import Encoding, Tokenizer


class ControlTokens:
    """Marks special tokens in messages, and tokenizes marked texts."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_tokens
        contents = sorted((token.content for token in self._special.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents)) or "(?!)")
        # Random, so that no message can contain them.
        self._mark, self._open, self._close = (f"\uf8ff{secrets.token_hex(8)}\uf8ff" for _ in range(3))
        # A mark breaks a token of several characters. One of a single character is replaced instead.
        self._replaced = {
            content: f"\uf8ff{secrets.token_hex(8)}\uf8ff" for content in contents if len(content) == 1
        }
        self._marked = [
            (content, self._replaced.get(content, content[:1] + self._mark + content[1:]))
            for content in contents
        ]
        self.may_appear = tokenizer.normalizes and any(each.normalized for each in self._special.values())
        """True when the tokenizer's normalizer can make special tokens of other text, such as full-width
        letters; plain encoding would recognize them."""
        self._protecting: _Protecting | None = None

    def mark(self, text: str) -> str:
        """Returns a user's text, changed so that it contains no special token."""
        for content, marked in self._marked:  # not one regular expression: that would hold the GIL for long
            text = text.replace(content, marked)
        return text

    def is_marked(self, text: str) -> bool:
        """True when the text contains a marked token."""
        return self._mark in text or any(stand_in in text for stand_in in self._replaced.values())

    def unmark(self, text: str) -> str:
        """Returns the text as the user wrote it."""
        for content, stand_in in self._replaced.items():
            text = text.replace(stand_in, content)
        return text.replace(self._mark, "")

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """Tokenizes a marked text. Offsets are not available."""
        if self._protecting is None:
            self._protecting = _Protecting(self._tokenizer, self._open, self._close)
        wrapped = self._pattern.sub(lambda match: self._open + match[0] + self._close, text)
        return self._protecting.encode(self.unmark(wrapped), add_special_tokens)


class _Protecting:
    """A second tokenizer, which recognizes special tokens only where they are wrapped."""

    def __init__(self, tokenizer: Tokenizer, opening: str, closing: str) -> None:
        self._tokenizer = tokenizer.copy()
        self._tokenizer.encode_special_tokens = True  # special tokens are ordinary text
        self._original: dict[int, int] = {}
        for token, added in tokenizer.special_tokens.items():
            wrapped = AddedToken(
                opening + added.content + closing, normalized=False, lstrip=added.lstrip, rstrip=added.rstrip
            )
            self._tokenizer.add_tokens([wrapped])
            stand_in = self._tokenizer.token_to_id(wrapped.content)
            assert stand_in is not None
            self._original[stand_in] = token

    def encode(self, text: str, add_special_tokens: bool) -> Encoding:
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids = [self._original.get(token, token) for token in encoding.ids]
        return Encoding(token_ids, encoding.special_tokens_mask, ())
