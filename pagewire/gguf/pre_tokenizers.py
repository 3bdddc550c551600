"""How byte-level vocabularies split a text before merging, by `tokenizer.ggml.pre` of a GGUF file.

A GGUF file names the rule in place of its regular expressions, which are those of each tokenizer.json. A name
that is not here is refused: another rule would give other tokens.
"""

from collections.abc import Callable
from typing import Any

from tokenizers import Regex, pre_tokenizers

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
