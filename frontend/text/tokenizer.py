"""The model's tokenizer: text to token ids, and what detokenizers need.

Encoding uses the batch calls of `tokenizers`, because the single ones hold the GIL: a long prompt would block
the event loop from a thread (measured: 1.2 MB for 1.3 s).
"""

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken

from frontend.text.detokenizer import (
    ByteLevelDetokenizer,
    Detokenizer,
    PieceDetokenizer,
    PieceTable,
    WindowDetokenizer,
)

# Each prompt has a thread already; a second thread pool would compete with the event loop.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_BYTE_TOKEN = re.compile("<0x([0-9A-Fa-f]{2})>")
_PIECES = re.compile("Metaspace (ByteFallback )?(Fuse )?|(Replace )*(ByteFallback )?(Fuse (Strip )?)?")

T = TypeVar("T")


def takes_part(content: str, special: bool) -> bool:
    """Returns whether llguidance treats an added token as one that no text matches."""
    return special or (content.startswith("<") and content.endswith(">"))


@dataclass(frozen=True, slots=True)
class Encoding:
    """A tokenized text. Offsets are in characters and refer to the whole text."""

    token_ids: Sequence[int]
    added: Sequence[int]
    """1 for tokens that are not in the text (BOS and the like), 0 for the others."""
    offsets: Sequence[tuple[int, int]]
    second_text: int = 0
    """Index of the first token of a pair's second text; 0: the tokenizer tells the two apart by no types."""


class Tokenizer:
    """An immutable tokenizer. Methods may be called from several threads."""

    def __init__(self, tokenizer: "tokenizers.Tokenizer") -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size(with_added_tokens=True)
        self._added: dict[int, AddedToken] = tokenizer.get_added_tokens_decoder()
        self._special = frozenset(token for token, added in self._added.items() if added.special)
        self.longest_token = self._longest_token()
        """Maximum bytes of text per token; None: unbounded."""
        self._make_detokenizer = {skip: self._plan_detokenizer(skip) for skip in (False, True)}

    def token_id(self, token: str) -> int | None:
        """Returns the id of a token's text; None: there is no such token."""
        return self._tokenizer.token_to_id(token)

    def encode(self, text: str, *, add_special_tokens: bool, offsets: bool = False) -> Encoding:
        """Tokenizes. The text of a special token becomes that token."""
        call = self._tokenizer.encode_batch if offsets else self._tokenizer.encode_batch_fast
        (encoding,) = call([text], add_special_tokens=add_special_tokens)
        return Encoding(encoding.ids, encoding.special_tokens_mask, encoding.offsets if offsets else ())

    def encode_pair(self, first: str, second: str) -> Encoding:
        """Tokenizes two texts into one sequence, with the special tokens of the tokenizer's pairs."""
        (encoding,) = self._tokenizer.encode_batch_fast([(first, second)], add_special_tokens=True)
        types = encoding.type_ids
        return Encoding(encoding.ids, encoding.special_tokens_mask, (), types.index(1) if 1 in types else 0)

    def encode_following(self, text: str) -> list[int]:
        """Tokenizes a text that continues another one: without the space that some tokenizers put before a
        text.

        The text is tokenized after a line break, whose tokens are then dropped. Where the two would merge
        into one token, the tokenizer works on bytes alone and puts nothing before a text.
        """
        anchor, whole = (
            list(self.encode(piece, add_special_tokens=False).token_ids) for piece in ("\n", "\n" + text)
        )
        if whole[: len(anchor)] == anchor:
            return whole[len(anchor) :]
        return list(self.encode(text, add_special_tokens=False).token_ids)

    def decode(self, sequences: Sequence[Sequence[int]], *, skip_special_tokens: bool) -> list[str]:
        """Returns the texts of whole sequences. Ids without a token have no text."""
        batch = [list(sequence) for sequence in sequences]
        return self._tokenizer.decode_batch(batch, skip_special_tokens=skip_special_tokens)

    def detokenizer(self, *, skip_special_tokens: bool) -> Detokenizer:
        return self._make_detokenizer[skip_special_tokens]()

    def token_bytes(self, token: int) -> bytes:
        """Returns the bytes of one token, independent of its position; empty for ids without a token."""
        kind, steps = self._decoder
        if kind == "bytes":
            return _bytes_of(self._text(token))
        if kind == "pieces":
            piece = _piece_of(self._text(token), steps)
            return bytes((piece,)) if isinstance(piece, int) else (piece or "").encode()
        return (self._text(token) or "").encode()

    def _longest_token(self) -> int | None:
        swallows = any(added.lstrip or added.rstrip for added in self._added.values())
        if self._decoder[0] != "bytes" or self._tokenizer.normalizer is not None or swallows:
            return None
        return max((len(_bytes_of(self._text(token))) for token in range(self.vocab_size)), default=None)

    @property
    def normalizes(self) -> bool:
        """True when the tokenizer normalizes text before it splits it."""
        return self._tokenizer.normalizer is not None

    @property
    def added_tokens(self) -> dict[int, AddedToken]:
        """The tokens that have been added to the vocabulary, special or not, by id."""
        return self._added

    @property
    def special_tokens(self) -> dict[int, AddedToken]:
        return {token: self._added[token] for token in self._special}

    @property
    def grammar_tokens(self) -> dict[str, int]:
        """The texts of tokens that a grammar must name, with their ids."""
        return {
            added.content: token
            for token, added in self._added.items()
            if takes_part(added.content, added.special)
        }

    def copy(self) -> "tokenizers.Tokenizer":
        """Returns a copy of the underlying tokenizer that may be changed."""
        return tokenizers.Tokenizer.from_str(self._tokenizer.to_str())

    def spelling(self, token: int) -> str:
        """Returns the text by which the vocabulary knows a token; "": it has no such token."""
        return self._text(token) or ""

    def _text(self, token: int) -> str | None:
        return self._tokenizer.id_to_token(token) if 0 <= token < 2**32 else None

    @cached_property
    def _decoder(self) -> tuple[str, list[dict[str, Any]]]:
        """The kind of decoder, and its steps."""
        if self._tokenizer.decoder is None:
            return "window", []
        decoder = json.loads(self._tokenizer.decoder.__getstate__())
        steps = decoder["decoders"] if decoder["type"] == "Sequence" else [decoder]
        names = "".join(step["type"] + " " for step in steps)
        if names == "ByteLevel ":
            return "bytes", steps
        plain = all("String" in step["pattern"] for step in steps if step["type"] == "Replace")
        stop = any(step["stop"] for step in steps if step["type"] == "Strip")
        if steps and plain and not stop and _PIECES.fullmatch(names):
            return "pieces", steps
        return "window", steps

    def _plan_detokenizer(self, skip_special_tokens: bool) -> Callable[[], Detokenizer]:
        kind, steps = self._decoder
        left_out = self._special if skip_special_tokens else frozenset[int]()
        if kind == "bytes":
            table = _Table(lambda token: b"" if token in left_out else _bytes_of(self._text(token)))
            return lambda: ByteLevelDetokenizer(table)
        if kind == "window":
            return lambda: WindowDetokenizer(
                self._decode_window, lambda token: token in left_out or self._text(token) is None
            )

        def pieces(first: bool) -> PieceTable:
            return _Table(
                lambda token: None if token in left_out else _piece_of(self._text(token), steps, first)
            )

        rest = pieces(False)
        first = pieces(True) if steps[0]["type"] == "Metaspace" else None
        if steps[-1]["type"] != "Strip":
            return lambda: PieceDetokenizer(rest, first=first)
        strip, count = str(steps[-1]["content"]), int(steps[-1]["start"])
        return lambda: PieceDetokenizer(rest, strip=strip, strip_count=count)

    def _decode_window(self, token_ids: Sequence[int]) -> str:
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)


class _Table(dict[int, T]):
    """A function of token ids, computed once per id."""

    def __init__(self, function: Callable[[int], T]) -> None:
        super().__init__()
        self._function = function

    def __missing__(self, token: int) -> T:
        value = self[token] = self._function(token)
        return value


def _byte_of_character() -> dict[str, int]:
    """Returns the inverse of the byte-level alphabet: each byte is written as itself where that is printable,
    otherwise as the next character from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(0x100 + place): byte for place, byte in enumerate(others)}


_BYTE_OF_CHARACTER = _byte_of_character()
BYTE_LEVEL = {byte: character for character, byte in _BYTE_OF_CHARACTER.items()}
"""The characters in which byte-level tokenizers write bytes."""


def _bytes_of(text: str | None) -> bytes:
    """Returns the bytes of a byte-level token. One with other characters (an added token) stands
    for itself."""
    if text is None:
        return b""
    try:
        return bytes([_BYTE_OF_CHARACTER[character] for character in text])
    except KeyError:
        return text.encode()


def _piece_of(text: str | None, steps: Sequence[dict[str, Any]], first: bool = False) -> str | int | None:
    """Applies the per-token steps of a SentencePiece-like decoder to a token.

    first: the token begins the text, where Metaspace drops the space that it adds when encoding.
    """
    if text is None:
        return None
    for step in steps:
        if step["type"] == "Replace":
            text = text.replace(step["pattern"]["String"], step["content"])
        elif step["type"] == "Metaspace":
            drops = first and step["prepend_scheme"] != "never"
            text = text.replace(step["replacement"], "" if drops else " ")
        elif step["type"] == "ByteFallback" and (byte := _BYTE_TOKEN.fullmatch(text)):
            return int(byte[1], 16)
    return text
