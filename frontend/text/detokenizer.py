"""Token ids to text, incrementally.

Invariant: the concatenated pieces of a sequence equal the tokenizer's decoding of all its tokens at once, at
their position after the prompt. A piece never splits a code point; what is undecided is held back and comes
with a later piece, or with flush().

Three kinds of tokenizers, told apart by their decoder (frontend.text.tokenizer):

ByteLevelDetokenizer   tokens are bytes: GPT-2, Llama 3, Qwen, OPT, most current models
PieceDetokenizer       tokens are text with a visible space, some are single bytes: SentencePiece
WindowDetokenizer      anything else: decodes a few tokens again and again, and takes what is new
"""

import codecs
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from typing import Protocol, Self

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MAX_UNDECIDED = 32
"""Tokens that WindowDetokenizer holds back. A code point has at most four bytes, so what is still undecided
after this many is not text."""


class Detokenizer(Protocol):
    """Produces the text of one sequence."""

    def prime(self, prompt: Iterable[int]) -> None:
        """Consumes a prompt before the sequence, whose text is not needed."""

    def push(self, token_ids: Iterable[int]) -> str:
        """Consumes tokens and returns the text that they decide."""

    def flush(self) -> str:
        """Returns the text that was held back, at the end of the sequence."""

    def copy(self) -> Self:
        """Returns an independent copy, for another sequence of the same prompt."""


class ByteLevelDetokenizer:
    """Decodes bytes as UTF-8. Invalid bytes become U+FFFD, one per maximal subpart, as in Rust."""

    __slots__ = ("_table", "_pending")

    def __init__(self, table: Mapping[int, bytes]) -> None:
        """table: token id -> its bytes; empty for tokens that are left out."""
        self._table = table
        self._pending = b""

    def prime(self, prompt: Iterable[int]) -> None:
        """Does nothing: bytes do not depend on the prompt."""

    def push(self, token_ids: Iterable[int]) -> str:
        table = self._table
        data = self._pending + b"".join([table[token] for token in token_ids])
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        data, self._pending = self._pending, b""
        return data.decode("utf-8", "replace")

    def copy(self) -> Self:
        return copy(self)


PieceTable = Mapping[int, str | int | None]
"""Token id -> its text, or its byte, or None for tokens that are left out."""


class PieceDetokenizer:
    """Decodes texts, and runs of single bytes: a run is decoded when it ends, to text if all of it is valid
    UTF-8, otherwise to one U+FFFD per byte.

    Two rules of such decoders concern the beginning of a text, so they do not apply after a prompt.
    """

    __slots__ = ("_table", "_first", "_strip", "_strip_left", "_run")

    def __init__(
        self, table: PieceTable, *, first: PieceTable | None = None, strip: str = "", strip_count: int = 0
    ) -> None:
        """first: table for the first token of a text, if it differs. strip: a character that is removed from
        the beginning, up to strip_count times."""
        self._table = table
        self._first = first
        self._strip = strip
        self._strip_left = strip_count
        self._run = b""

    def prime(self, prompt: Iterable[int]) -> None:
        """Consumes as much of the prompt as it takes to leave the beginning of the text."""
        for token in prompt:
            if self._first is None and not self._strip_left:
                break
            self.push((token,))
        self.flush()

    def push(self, token_ids: Iterable[int]) -> str:
        table = self._table if self._first is None else self._first
        pieces: list[str] = []
        for token in token_ids:
            piece = table[token]
            if piece is None:
                continue
            if table is self._first:
                table, self._first = self._table, None
            if isinstance(piece, int):
                self._run += bytes((piece,))
                continue
            if self._run:
                pieces.append(_decode_run(self._run))
                self._run = b""
            pieces.append(piece)
        text = "".join(pieces)
        return self._stripped(text) if self._strip_left else text

    def flush(self) -> str:
        if not self._run:
            return ""
        text, self._run = _decode_run(self._run), b""
        return self._stripped(text) if self._strip_left else text

    def copy(self) -> Self:
        return copy(self)

    def _stripped(self, text: str) -> str:
        cut = 0
        while cut < min(len(text), self._strip_left) and text[cut] == self._strip:
            cut += 1
        self._strip_left = self._strip_left - cut if cut == len(text) else 0
        return text[cut:]


def _decode_run(run: bytes) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(run)


class WindowDetokenizer:
    """Decodes the last few tokens with and without the new ones; the difference is their text.

    Exact where a token's text depends only on its neighbours, which holds for every decoder that the two
    other classes do not cover.
    """

    __slots__ = ("_decode", "_left_out", "_window", "_decided", "_text")

    CONTEXT = 6
    """Tokens of the prompt that the first output token is decoded with."""

    def __init__(self, decode: Callable[[Sequence[int]], str], left_out: Callable[[int], bool]) -> None:
        """decode: of all its tokens at once. left_out: whether a token has no text."""
        self._decode = decode
        self._left_out = left_out
        self._window: tuple[int, ...] = ()
        self._decided = 0  # tokens of the window whose text has been returned
        self._text = ""  # ... and that text

    def prime(self, prompt: Iterable[int]) -> None:
        kept = [token for token in prompt if not self._left_out(token)]
        self._window = tuple(kept[-self.CONTEXT :])
        self._settle()

    def push(self, token_ids: Iterable[int]) -> str:
        return "".join([self._push(token) for token in token_ids if not self._left_out(token)])

    def flush(self) -> str:
        text = self._decode(self._window)
        new = text[len(self._text) :]
        self._settle()
        return new

    def copy(self) -> Self:
        return copy(self)

    def _push(self, token: int) -> str:
        self._window += (token,)
        text = self._decode(self._window)
        undecided = len(self._window) - self._decided
        if text.endswith(REPLACEMENT) and undecided < MAX_UNDECIDED:
            return ""  # perhaps the beginning of a code point
        new = text[len(self._text) :]
        self._window = self._window[self._decided :]
        self._settle()
        return new

    def _settle(self) -> None:
        self._decided = len(self._window)
        self._text = self._decode(self._window)
