"""The tokenizer in a GGUF file's metadata, as an object of `tokenizers`.

`tokenizer.ggml.model` says which kind it is: "gpt2" is byte-level BPE with merges in the file, "llama" is
SentencePiece's BPE, whose merges follow from the scores of its pieces.
"""

from array import array
from collections.abc import Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, normalizers, processors

from pagewire.errors import StartupError
from pagewire.gguf.header import Header, TokenType
from pagewire.gguf.pre_tokenizers import BEGINS, KNOWN, WHOLE_WORDS, pre_tokenizer

WHAT = "cannot read the tokenizer"
SPACE = "\N{LOWER ONE EIGHTH BLOCK}"
LONGEST_PIECE = 256
"""Characters of a piece whose merges are searched for: the work grows with the square."""


class GGUFVocabulary:
    """The entries under `tokenizer.ggml`, checked."""

    def __init__(self, header: Header) -> None:
        """Raises StartupError."""
        self._metadata, self._file = header.metadata, header.path.name
        self.tokens: list[str] = self._strings("tokens")
        count = len(self.tokens)
        types = self._get("token_type", array("i", [TokenType.NORMAL]) * count)
        if not isinstance(types, array) or len(types) != count:
            raise self.wrong("token_type", f"must have a number for each of {count} tokens")
        self.types: Sequence[int] = types

    def of_type(self, kind: TokenType) -> list[int]:
        """Ids of the tokens of a type."""
        return [token for token, each in enumerate(self.types) if each == kind]

    def make(self) -> "tokenizers.Tokenizer":
        """Returns the tokenizer. Raises StartupError for a kind that is not known."""
        kind = self._get("model", "")
        if kind == "gpt2":
            tokenizer = self._byte_level()
        elif kind == "llama":
            tokenizer = self._sentence_piece()
        else:
            raise self.wrong("model", f"{kind!r} is not known: known are gpt2 and llama")
        for special, types in ((True, (TokenType.CONTROL,)), (False, (TokenType.USER_DEFINED,))):
            added = [self.tokens[token] for each in types for token in self.of_type(each)]
            tokenizer.add_tokens(
                [AddedToken(text, special=special, normalized=False) for text in added if text]
            )
        self._add_ends(tokenizer)
        return tokenizer

    def special_tokens(self) -> dict[str, str]:
        """Returns bos_token, eos_token and so on -> the token's text."""
        names = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
        found = {names[name]: self.token_id(name) for name in names}
        return {f"{name}_token": self.tokens[token] for name, token in found.items() if token is not None}

    def token_id(self, name: str) -> int | None:
        """Returns the id of bos, eos, unknown or padding; None if the file has none."""
        token = self._get(f"{name}_token_id", None)
        if token is None:
            return None
        if not isinstance(token, int) or not 0 <= token < len(self.tokens):
            raise self.wrong(f"{name}_token_id", f"{token!r} is not one of {len(self.tokens)} tokens")
        return token

    def wrong(self, name: str, why: str) -> StartupError:
        """Returns the error to raise for one entry."""
        return StartupError(WHAT, f"{self._file}: tokenizer.ggml.{name}: {why}")

    def _vocabulary(self) -> dict[str, int]:
        vocabulary: dict[str, int] = {}
        for token, text in enumerate(self.tokens):
            vocabulary.setdefault(text, token)
        return vocabulary

    def _byte_level(self) -> "tokenizers.Tokenizer":
        name = self._get("pre", "")
        splitter = pre_tokenizer(name) if isinstance(name, str) else None
        if splitter is None:
            raise self.wrong("pre", f"{name!r} is not known: known are {', '.join(sorted(KNOWN))}")
        vocabulary = self._vocabulary()
        merges = []
        for merge in self._strings("merges"):
            left, space, right = merge.partition(" ")
            if (
                not space
                or left not in vocabulary
                or right not in vocabulary
                or left + right not in vocabulary
            ):
                raise self.wrong("merges", f"{merge!r} does not join two tokens to a third")
            merges.append((left, right))
        tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, merges, ignore_merges=name in WHOLE_WORDS))
        tokenizer.pre_tokenizer = splitter
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentence_piece(self) -> "tokenizers.Tokenizer":
        vocabulary = self._vocabulary()
        scores = self._get("scores", None)
        if not isinstance(scores, array) or len(scores) != len(self.tokens):
            raise self.wrong("scores", f"must have a number for each of {len(self.tokens)} tokens")
        pieces = {self.tokens[token]: token for token in self.of_type(TokenType.NORMAL)}
        unknown = self.token_id("unknown")
        tokenizer = tokenizers.Tokenizer(
            models.BPE(
                vocabulary,
                _merges(pieces, scores),
                byte_fallback=bool(self.of_type(TokenType.BYTE)),
                fuse_unk=True,
                unk_token=None if unknown is None else self.tokens[unknown],
            )
        )
        steps: list[Any] = [normalizers.Replace(" ", SPACE)]
        undo: list[Any] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
        if self._get("add_space_prefix", True):
            steps.insert(0, normalizers.Prepend(SPACE))
            undo.append(decoders.Strip(" ", 1, 0))
        tokenizer.normalizer = normalizers.Sequence(steps)
        tokenizer.decoder = decoders.Sequence(undo)
        return tokenizer

    def _add_ends(self, tokenizer: "tokenizers.Tokenizer") -> None:
        """Makes encoding add BOS and EOS where the file asks for it."""
        template: list[str] = ["$A"]
        special: list[tuple[str, int]] = []
        begins = self._get("model", "") == "llama" or self._get("pre", "") in BEGINS
        for name, default in (("bos", begins), ("eos", False)):
            token = self.token_id(name)
            if self._get(f"add_{name}_token", default) and token is not None:
                text = self.tokens[token]
                special.append((text, token))
                template = [text, *template] if name == "bos" else [*template, text]
        if special:
            tokenizer.post_processor = processors.TemplateProcessing(single=template, special_tokens=special)

    def _get(self, name: str, default: Any) -> Any:
        return self._metadata.get(f"tokenizer.ggml.{name}", default)

    def _strings(self, name: str) -> list[str]:
        values = self._get(name, None)
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise self.wrong(name, "must be an array of strings")
        return [value.encode("utf-8", "surrogateescape").decode("utf-8", "replace") for value in values]


def _merges(pieces: dict[str, int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Returns the pairs of pieces that make a piece: the better a piece's score, the earlier. Pairs of one
    piece are ordered by their ids."""
    found = [
        (-scores[token], pieces[text[:cut]], pieces[text[cut:]], text, cut)
        for text, token in pieces.items()
        if len(text) <= LONGEST_PIECE
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    return [(text[:cut], text[cut:]) for *_, text, cut in sorted(found)]
