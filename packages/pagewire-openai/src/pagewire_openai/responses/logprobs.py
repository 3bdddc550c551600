"""Log-probabilities in the two shapes of the OpenAI API."""

import codecs
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from pagewire.v1 import generation_pb2

LOWEST = -9999.0
"""Stands for minus infinity, which JSON cannot write."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A token with its log-probability and candidates. logprob: None where there is none: the first token of
    a prompt."""

    token: bytes
    logprob: float | None
    candidates: list[tuple[bytes, float]]


def scored_tokens(logprobs: generation_pb2.TokenLogprobs, token_bytes: Sequence[bytes]) -> Iterator[Scored]:
    """Yields the tokens of a message. token_bytes: of each of them."""
    counts = logprobs.candidate_counts or [0] * len(logprobs.logprobs)
    start = 0
    for token, logprob, count in zip(token_bytes, logprobs.logprobs, counts, strict=True):
        end = start + count
        values = map(_finite, logprobs.candidate_logprobs[start:end])
        candidates = list(zip(logprobs.candidate_bytes[start:end], values, strict=True))
        yield Scored(token, None if math.isnan(logprob) else _finite(logprob), candidates)
        start = end


def chat_logprobs(output: generation_pb2.SequenceOutput) -> dict[str, Any]:
    """Returns `logprobs` of a chat choice: one entry per token."""
    content = []
    for scored in scored_tokens(output.logprobs, output.token_bytes):
        entry = _entry(scored.token, scored.logprob)
        entry["top_logprobs"] = [_entry(token, logprob) for token, logprob in scored.candidates]
        content.append(entry)
    return {"content": content, "refusal": None}


class CompletionLogprobs:
    """`logprobs` of a completion's choice: parallel lists. Keeps the next token's offset in the text."""

    def __init__(self, hidden: Collection[bytes] = ()) -> None:
        """hidden: tokens that the text leaves out."""
        self._hidden = hidden
        self._offset = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def put(self, scored: Iterator[Scored], text: str = "") -> dict[str, Any]:
        """Returns the lists for these tokens. text: that comes with them."""
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        lists: dict[str, list[Any]] = {name: [] for name in names}
        for each in scored:
            name = _name(each.token)
            lists["tokens"].append(name)
            lists["token_logprobs"].append(each.logprob)
            top = {_name(token): logprob for token, logprob in reversed(each.candidates)}
            if each.logprob is not None:
                top[name] = each.logprob
            lists["top_logprobs"].append(None if each.logprob is None else top)
            lists["text_offset"].append(self._offset)
            if each.token not in self._hidden:
                piece = self._decoder.decode(each.token)
                # SentencePiece's first word has a space that a text does not begin with.
                drops = not self._offset and piece.startswith(" ") and text[:1] not in ("", " ")
                self._offset += len(piece) - drops
        return lists


def _name(token: bytes) -> str:
    """Returns a token's text; of a part of a code point, which has none, its bytes, as OpenAI writes them."""
    try:
        return token.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in token)


def _entry(token: bytes, logprob: float | None) -> dict[str, Any]:
    return {"token": _text(token), "logprob": logprob, "bytes": list(token)}


def _text(token: bytes) -> str:
    """Returns a token's text. A part of a code point, which is none, becomes U+FFFD."""
    return token.decode(errors="replace")


def _finite(logprob: float) -> float:
    return max(logprob, LOWEST)
