"""What users write never becomes a control token.

A conversation's messages are often somebody else's words. If they contain the text of a special
token, such as the one that ends a turn, tokenizing the rendered conversation would let them end the
turn. So the special tokens in messages are marked before rendering; afterwards only those of the
template count. (A text prompt is different: its author writes the template himself.)
"""

import re
import secrets

from tokenizers import AddedToken

from frontend.text.tokenizer import Encoding, Tokenizer


class ControlTokens:
    """Marks special tokens in messages, and tokenizes texts with marks."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._special = tokenizer.special_tokens
        contents = sorted((token.content for token in self._special.values()), key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, contents)) or "(?!)")
        # Nobody can guess these, so nobody can write them into a message.
        self._mark, self._open, self._close = (f"\uf8ff{secrets.token_hex(8)}\uf8ff" for _ in range(3))
        self._marked = [(content, content[:1] + self._mark + content[1:]) for content in contents]
        self._protecting: _Protecting | None = None

    def mark(self, text: str) -> str:
        """What a user wrote, changed so that it contains no special token."""
        for content, marked in self._marked:  # not one regular expression: that would hold the GIL for long
            text = text.replace(content, marked)
        return text

    def is_marked(self, text: str) -> bool:
        """Whether something in it is."""
        return self._mark in text

    def unmark(self, text: str) -> str:
        """What the user wrote."""
        return text.replace(self._mark, "")

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        """Tokenizes a marked text. Its offsets are not known."""
        if self._protecting is None:
            self._protecting = _Protecting(self._tokenizer, self._open, self._close)
        wrapped = self._pattern.sub(lambda match: self._open + match[0] + self._close, text)
        return self._protecting.encode(self.unmark(wrapped), add_special_tokens)


class _Protecting:
    """A second tokenizer, that knows special tokens only where they are wrapped."""

    def __init__(self, tokenizer: Tokenizer, opening: str, closing: str) -> None:
        self._tokenizer = tokenizer.copy()
        self._tokenizer.encode_special_tokens = True  # as ordinary text
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
