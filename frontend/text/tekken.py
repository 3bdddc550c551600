"""tekken.json, the tokenizer of mistral-common: byte-level BPE that merges by rank.

A file has a regular expression that splits texts, the bytes of each token in order of rank, and the control
tokens, which come first: a token's id is its rank plus their number. The file names no merges; they follow
from the ranks: two tokens join where the result is a token, the one of lowest rank first.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, processors

from frontend.text.tokenizer import BYTE_LEVEL
from pagewire.errors import StartupError

FILE = "tekken.json"
WHAT = "cannot read the tokenizer"
BEGIN = "<s>"
ENDS = {"bos_token": BEGIN, "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
"""What tokenizer_config.json would say of the control tokens."""
UNNAMED = (
    *("<unk>", BEGIN, "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"),
    *("[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]"),
    *("[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
"""The first control tokens of files that list none."""
MOST_TOKENS = 1 << 20
LONGEST = 256
"""Bytes of a token."""


def make_tekken(content: Mapping[str, Any], origin: str) -> "tokenizers.Tokenizer":
    """Returns the tokenizer of a file's content. Texts begin with `<s>`. Raises StartupError, naming what is
    wrong."""
    config = content.get("config")
    if not isinstance(config, dict) or not isinstance(config.get("pattern"), str):
        raise _wrong(origin, "config.pattern", "must be a regular expression")
    size = _count(origin, config, "default_vocab_size")
    num_control = _count(origin, config, "default_num_special_tokens")
    if not num_control <= size <= MOST_TOKENS:
        raise _wrong(origin, "config.default_vocab_size", f"must be {num_control} to {MOST_TOKENS}")
    control = _control_tokens(content, num_control, origin)
    tokens = _tokens(content, size - num_control, origin)
    vocabulary = {text: token for token, text in enumerate(control)}
    for rank, token in enumerate(tokens):
        vocabulary.setdefault(_text(token), num_control + rank)
    tokenizer = tokenizers.Tokenizer(models.BPE(vocabulary, _merges(tokens), ignore_merges=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(config["pattern"]), behavior="isolated", invert=False),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in control])
    if BEGIN in control:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[BEGIN, "$A"], special_tokens=[(BEGIN, control.index(BEGIN))]
        )
    return tokenizer


def _count(origin: str, config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise _wrong(origin, f"config.{name}", "must be a number of tokens")
    return value


def _control_tokens(content: Mapping[str, Any], count: int, origin: str) -> list[str]:
    """Returns the texts of the control tokens, by id."""
    listed = content.get("special_tokens")
    if listed is None:
        listed = [{"rank": rank, "token_str": text} for rank, text in enumerate(UNNAMED[:count])]
    if not isinstance(listed, list):
        raise _wrong(origin, "special_tokens", "must be a list")
    texts = [f"<SPECIAL_{token}>" for token in range(count)]
    for entry in listed:
        rank, text = (entry.get("rank"), entry.get("token_str")) if isinstance(entry, dict) else (None, None)
        if not isinstance(rank, int) or not 0 <= rank < count or not isinstance(text, str) or not text:
            raise _wrong(origin, "special_tokens", f"each must have a token_str, and a rank below {count}")
        texts[rank] = text
    if len(set(texts)) < count:
        raise _wrong(origin, "special_tokens", "two of them have one text")
    return texts


def _tokens(content: Mapping[str, Any], count: int, origin: str) -> list[bytes]:
    """Returns the bytes of the other tokens, by rank."""
    listed = content.get("vocab")
    if not isinstance(listed, list) or len(listed) < count or count < 256:
        raise _wrong(origin, "vocab", f"must have {max(count, 256)} tokens")
    tokens = []
    for rank, entry in enumerate(listed[:count]):
        try:
            token = base64.b64decode(entry["token_bytes"], validate=True)
        except (KeyError, TypeError, binascii.Error) as error:
            raise _wrong(origin, f"vocab[{rank}].token_bytes", "must be bytes in base64") from error
        if entry.get("rank") != rank or not 0 < len(token) <= LONGEST:
            raise _wrong(origin, f"vocab[{rank}]", f"must have rank {rank}, and 1 to {LONGEST} bytes")
        tokens.append(token)
    if len(set(tokens)) < count or any(bytes((byte,)) not in set(tokens[:256]) for byte in range(256)):
        raise _wrong(origin, "vocab", "must begin with all single bytes, and have each token once")
    return tokens


def _merges(tokens: Sequence[bytes]) -> list[tuple[str, str]]:
    """Returns all pairs that join to a token, those of tokens of lower ranks first."""
    ranks = {token: rank for rank, token in enumerate(tokens)}
    merges = []
    for token in tokens:
        pairs = [
            (ranks[token[:cut]], ranks[token[cut:]])
            for cut in range(1, len(token))
            if token[:cut] in ranks and token[cut:] in ranks
        ]
        merges += [(_text(tokens[left]), _text(tokens[right])) for left, right in sorted(pairs)]
    return merges


def _text(token: bytes) -> str:
    """Writes bytes in the alphabet of byte-level tokenizers."""
    return "".join(BYTE_LEVEL[byte] for byte in token)


def _wrong(origin: str, name: str, why: str) -> StartupError:
    return StartupError(WHAT, f"{origin}: {name} {why}")
