"""The tokens that end a sequence: all that the files of a checkpoint name.

config.json, generation_config.json                 `eos_token_id`
tokenizer_config.json, special_tokens_map.json      `eos_token`, a text, and `eot_token`, `eom_token`
a GGUF file                                         see worker.config.gguf
"""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pagewire.checkpoints.files import read_object, read_whole
from pagewire.gguf.header import is_gguf
from worker.config.hf_config import WHAT, Fields

logger = logging.getLogger(__name__)
NAMES = ("eos_token", "eot_token", "eom_token")


def read_ends(folder: Path, config: Fields, tokenizer: Path | None = None) -> dict[int, str]:
    """Returns the tokens that end a sequence, in ascending order, each with the files that name it, and logs
    them. tokenizer: folder of the tokenizer's files; None: the same one. Raises StartupError.

    Ids outside the vocabulary (a family's default in a smaller model) cannot occur and are left out.
    """
    found: dict[int, list[str]] = {}
    vocab_size = config.integer("vocab_size")
    for token, origin in _stated(folder, config, tokenizer):
        if token < vocab_size and origin not in found.setdefault(token, []):
            found[token].append(origin)
    ends = {token: ", ".join(origins) for token, origins in sorted(found.items())}
    named = "; ".join(f"{token} ({origins})" for token, origins in ends.items())
    if named:
        logger.info("answers end at the tokens %s", named[:1000])
    else:
        logger.warning(
            "no file of the checkpoint names a token that ends answers: they run to max_tokens or the "
            "end of the context, and structured output is off; add eos_token_id to generation_config.json"
        )
    return ends


def _stated(folder: Path, config: Fields, tokenizer: Path | None) -> Iterator[tuple[int, str]]:
    """Yields each end and the file that names it."""
    if is_gguf(folder):
        yield from ((token, folder.name) for token in config.token_ids("eos_token_id"))
        if tokenizer is None:
            return
    else:
        name = "generation_config.json"
        generation = Fields(read_object(folder, name, WHAT) or {}, name)
        for origin, fields in (("config.json", config), (name, generation)):
            yield from ((token, origin) for token in fields.token_ids("eos_token_id"))
    folder = tokenizer or folder
    files = {
        name: read_object(folder, name, WHAT) for name in ("tokenizer_config.json", "special_tokens_map.json")
    }
    ids: dict[str, int] | None = None
    for origin, content in files.items():
        for text in _texts(content or {}):
            ids = _token_ids(folder, files["tokenizer_config.json"] or {}) if ids is None else ids
            if text in ids:
                yield ids[text], origin


def _texts(content: dict[str, Any]) -> Iterator[str]:
    for name in NAMES:
        value = content.get(name)
        text = value.get("content") if isinstance(value, dict) else value
        if isinstance(text, str):
            yield text


def _token_ids(folder: Path, config: dict[str, Any]) -> dict[str, int]:
    """Returns the ids of the added tokens, and of the vocabulary, as far as the files of the tokenizer are
    readable: the frontend refuses those that are not."""
    found: dict[str, int] = {}
    try:
        tokenizer = json.loads(read_whole(folder, "tokenizer.json", WHAT) or b"{}")
        vocabulary = tokenizer.get("model", {}).get("vocab", {})
        if not vocabulary:
            vocabulary = json.loads(read_whole(folder, "vocab.json", WHAT) or b"{}")
        if isinstance(vocabulary, dict):
            found |= vocabulary
        else:
            found |= {entry[0]: token for token, entry in enumerate(vocabulary)}
        found |= json.loads(read_whole(folder, "added_tokens.json", WHAT) or b"{}")
        found |= {each["content"]: each["id"] for each in tokenizer.get("added_tokens", [])}
        decoder = config.get("added_tokens_decoder", {})
        found |= {each["content"]: int(token) for token, each in decoder.items()}
    except (ValueError, RecursionError, AttributeError, KeyError, TypeError, IndexError):
        logger.debug("the tokenizer's files are not readable", exc_info=True)
    return {text: token for text, token in found.items() if isinstance(token, int) and token >= 0}
