"""The tokenizer in a GGUF file's metadata, as an object of `tokenizers`.

`tokenizer.ggml.model` says which kind it is: "gpt2" is byte-level BPE with merges in the file, "llama" is
SentencePiece's BPE, whose merges follow from the scores of its pieces. How a byte-level vocabulary splits a
text before merging, `tokenizer.ggml.pre` names in place of the regular expressions of a tokenizer.json. A
name that is not here is refused: another rule would give other tokens.
"""

from array import array
from collections.abc import Callable, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors

from pagewire.errors import StartupError
from pagewire.gguf.header import Header, TokenType

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
        self._require_distinct(self._get("tokens", None))
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

    def _require_distinct(self, tokens: Sequence[str]) -> None:
        """Raises StartupError when two tokens have a text: one of them would never be read or written."""
        first: dict[str, int] = {}
        for token, text in enumerate(tokens):
            if text and first.setdefault(text, token) != token:
                raise self.wrong("tokens", f"{first[text]} and {token} have the same text")

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
            if token is None and self._get(f"add_{name}_token", False):
                raise self.wrong(f"add_{name}_token", f"is true, but there is no {name}_token_id")
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


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"


def _words(digits: str) -> str:
    """The rule of most families: contractions, words with one character before, numbers, signs, spaces."""
    return rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}|{_TAIL}"


_LLAMA3 = _words(r"\p{N}{1,3}")
_QWEN2 = _words(r"\p{N}")
_QWEN35 = (
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"""| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+""",
)
_DEEPSEEK_CODER = (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}")


def _by(*expressions: str) -> list[Any]:
    """Splits by each expression in turn; what one leaves between its matches is split by the next."""
    return [pre_tokenizers.Split(Regex(each), behavior="isolated", invert=False) for each in expressions]


def _plain(use_regex: bool) -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)


def _gpt2() -> list[Any]:
    return [_plain(True)]


def _digits_then_gpt2() -> list[Any]:
    return [pre_tokenizers.Digits(individual_digits=True), _plain(True)]


def _falcon() -> list[Any]:
    return [
        pre_tokenizers.Punctuation(behavior="contiguous"),
        _plain(True),
        pre_tokenizers.Digits(individual_digits=False),
        *_by("[0-9][0-9][0-9]"),
    ]


def _split(*expressions: str) -> Callable[[], list[Any]]:
    return lambda: [*_by(*expressions), _plain(False)]


_RULES: dict[str, tuple[Callable[[], list[Any]], tuple[str, ...]]] = {
    "gpt2": (_gpt2, ("gpt-2", "phi-2", "mpt", "olmo", "jais", "trillion", "exaone4", "gigachat", "a.x-4.0")),
    "digits": (
        _digits_then_gpt2,
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"),
    ),
    "llama3": (
        _split(_LLAMA3),
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx", "smaug-bpe"),
    ),
    "qwen2": (
        _split(_QWEN2),
        ("qwen2", "deepseek-r1-qwen", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"),
    ),
    "qwen35": (_split(_QWEN35), ("qwen35",)),
    "tekken": (_split(_TEKKEN), ("tekken",)),
    "deepseek3": (_split(*_DEEPSEEK3), ("deepseek-v3", "hunyuan-dense")),
    "deepseek_coder": (_split(*_DEEPSEEK_CODER), ("deepseek-coder",)),
    "falcon": (_falcon, ("falcon",)),
}
"""Rule -> what makes it, and the names in files."""
WHOLE_WORDS = frozenset(
    {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"}
)
"""Names whose vocabularies take a word that is a token as it is, whatever its merges."""
BEGINS = WHOLE_WORDS - {"tekken"}
"""Names whose texts begin with BOS unless the file says otherwise."""
KNOWN = {name: make for make, names in _RULES.values() for name in names}


def pre_tokenizer(name: str) -> Any | None:
    """Returns the pre-tokenizer of a name; None if it is not known."""
    make = KNOWN.get(name)
    return None if make is None else pre_tokenizers.Sequence(make())
