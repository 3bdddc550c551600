"""Tokenizes rendered conversations: only the template writes control tokens.

A control token counts where the template wrote each of its characters (frontend.templates.taint); the same
text of a client is tokenized as letters. (In a text prompt, control tokens are allowed: its author writes the
template.)
"""

import json
import re
import secrets
from collections.abc import Iterable
from functools import cached_property
from itertools import groupby

import tokenizers
from tokenizers import AddedToken

from frontend.templates.taint import Tainted
from frontend.text.tokenizer import Encoding, Tokenizer

_MARKUP = re.compile(
    r"</?(?:b|blockquote|caption|code|em|h[1-6]|i|li|ol|p|strong|sub|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)>"
)
"""HTML that a few vocabularies have as tokens: it is text, also in a template."""
_MAX_NESTING = 200
"""Groups of a regular expression within one another."""


def is_control(added: AddedToken) -> bool:
    """Returns whether a token that has been added to a vocabulary is for templates and models to write.

    Tokenizers mark too few as special: Qwen's `<think>` and `</tool_response>` are not, nor is DeepSeek's
    `<｜User｜>`. Runs of spaces, line breaks or one punctuation mark are text.
    """
    text = added.content.strip()
    return added.special or (len(set(text)) > 1 and _MARKUP.fullmatch(text) is None)


class ControlTokens:
    """Tokenizes texts of which a template has written a part."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._control = {token: added for token, added in tokenizer.added_tokens.items() if is_control(added)}
        contents = sorted(added.content for added in self._control.values() if added.content)
        self._pattern = re.compile(_any_of(contents) if contents else "(?!)")
        self._may_appear = tokenizer.normalizes and any(each.normalized for each in self._control.values())
        """The tokenizer's normalizer can make control tokens of other text, such as full-width letters; plain
        encoding would recognize them."""

    def encode(self, text: str, *, add_special_tokens: bool, offsets: bool = False) -> Encoding | None:
        """Tokenizes a rendered text; None: its offsets are requested and not known."""
        if not isinstance(text, Tainted):
            return self._tokenizer.encode(text, add_special_tokens=add_special_tokens, offsets=offsets)
        plain, find = text.plain, self._pattern.finditer
        written = [found.span() for run in text.written for found in self._pattern.finditer(plain, *run)]
        if not self._may_appear and written == [found.span() for found in find(plain)]:
            return self._tokenizer.encode(plain, add_special_tokens=add_special_tokens, offsets=offsets)
        return None if offsets else self._strict.encode(plain, written, add_special_tokens)

    @cached_property
    def _strict(self) -> "_StrictTokenizer":
        return _StrictTokenizer(self._tokenizer, self._control)


class _StrictTokenizer:
    """A second tokenizer, which recognizes control tokens only where they are wrapped."""

    def __init__(self, tokenizer: Tokenizer, control: dict[int, AddedToken]) -> None:
        # Random, so that no text can contain them. They are not part of what is tokenized.
        self._open, self._close = (f"\uf8ff{secrets.token_hex(8)}\uf8ff" for _ in range(2))
        contents = {added.content for added in control.values()}
        self._tokenizer = _without(tokenizer.copy(), contents, self._open)
        self._original: dict[int, int] = {}
        for token, added in tokenizer.added_tokens.items():
            content = added.content
            if token in control:
                content = self._open + content + self._close
                wrapped = AddedToken(content, normalized=False, lstrip=added.lstrip, rstrip=added.rstrip)
                self._tokenizer.add_tokens([wrapped])
            known = self._tokenizer.token_to_id(content)
            if known is not None:
                self._original[known] = token

    def encode(self, text: str, control: Iterable[tuple[int, int]], add_special_tokens: bool) -> Encoding:
        """control: start and end of the control tokens in the text. The encoding has no offsets."""
        pieces: list[str] = []
        at = 0
        for start, end in control:
            pieces += text[at:start], self._open, text[start:end], self._close
            at = end
        text = "".join([*pieces, text[at:]])
        (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids = [self._original.get(token, token) for token in encoding.ids]
        return Encoding(token_ids, encoding.special_tokens_mask, ())


def _without(tokenizer: "tokenizers.Tokenizer", contents: set[str], mark: str) -> "tokenizers.Tokenizer":
    """Returns a tokenizer that does not know some tokens: neither as added ones nor as entries of its model's
    vocabulary, which some models find in a text without any merge. mark: no text has it."""
    state = json.loads(tokenizer.to_str())
    state["added_tokens"] = [each for each in state["added_tokens"] if each["content"] not in contents]
    model = state["model"]
    vocab = model.get("vocab")
    if isinstance(vocab, dict):
        model["vocab"] = {mark + text if text in contents else text: token for text, token in vocab.items()}
    elif isinstance(vocab, list):
        model["vocab"] = [[mark + text if text in contents else text, score] for text, score in vocab]
    if "merges" in model:
        pairs = (merge if isinstance(merge, list) else merge.split(" ", 1) for merge in model["merges"])
        model["merges"] = [pair for pair in pairs if not contents.intersection([*pair, "".join(pair)])]
    if model.get("unk_token") in contents:
        model["unk_token"] = mark + model["unk_token"]
    return tokenizers.Tokenizer.from_str(json.dumps(state))


def _any_of(texts: Iterable[str]) -> str:
    """Returns a regular expression of sorted texts that finds the longest, in time that does not grow with
    their number. Of long texts, which would nest too deeply, it is a plain list."""
    texts = list(texts)
    if max(map(len, texts), default=0) > _MAX_NESTING:
        return f"(?:{'|'.join(map(re.escape, sorted(texts, key=len, reverse=True)))})"
    branches = []
    optional = False
    for first, group in groupby(texts, key=lambda text: text[:1]):
        if first:
            branches.append(re.escape(first) + _any_of([text[1:] for text in group]))
        else:
            optional = True
    if not branches:
        return ""
    return f"(?:{'|'.join(branches)}){'?' if optional else ''}"
