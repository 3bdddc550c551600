"""Tokens that the files beside tokenizer.json add, or whose flags they change, read as transformers does:

tokenizer_config.json     `added_tokens_decoder`: tokens and their flags, by id
added_tokens.json         ids of tokens, in older checkpoints
tokenizer_config.json,    tokens that are special: `bos_token` and the like, `additional_special_tokens`,
special_tokens_map.json   `extra_special_tokens`
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

log = logging.getLogger(__name__)
Token = dict[str, Any]
"""An entry of `added_tokens` in tokenizer.json: id, content, and FLAGS."""
FLAGS = ("single_word", "lstrip", "rstrip", "normalized", "special")
_NAMED = tuple(f"{name}_token" for name in ("bos", "eos", "unk", "sep", "pad", "cls", "mask"))
_SHOWN = 100
"""Characters of a token that a warning quotes."""
_LISTS = ("additional_special_tokens", "extra_special_tokens")


def missing_tokens(
    known: Mapping[str, Token],
    id_of: Callable[[str], int | None],
    next_id: int,
    config: Mapping[str, Any],
    ids: Mapping[str, Any],
) -> list[Token]:
    """Returns the tokens to add to a tokenizer, and those whose flags to change, in ascending order of ids.

    A token that no file gives an id is left out, and so is one whose id a tokenizer cannot give it, with a
    warning; so are special tokens of one character such as "!", which stay text.

    known: the added tokens of tokenizer.json by their contents. id_of: returns the id of a token's content,
    also of one in the vocabulary. next_id: the id of the next new token. config: tokenizer_config.json with
    special_tokens_map.json. ids: added_tokens.json.
    """
    found: dict[str, Token] = {}
    texts, left_out = list[str](), list[str]()
    for content, token, flags in (*_decoded(config), *_listed(ids)):
        own = id_of(content)
        if own is None or flags:
            entry = {"id": token if own is None else own, **_flags(known, content), **flags}
            found.setdefault(content, entry)
    for content in _special(config):
        special = found.get(content, {"id": id_of(content), **_flags(known, content)})
        if special["id"] is None:
            named = repr(content[:_SHOWN])
            texts.append(f"the special token {named} stays text: no file of the tokenizer gives it an id")
        else:
            found[content] = {**special, "special": True}
    missing = []
    for content, entry in sorted(found.items(), key=lambda item: int(item[1]["id"])):
        entry = {**entry, "content": content}
        if known.get(content) == entry:
            continue
        if id_of(content) is None:
            if entry["id"] != next_id:
                named = repr(content[:_SHOWN])
                left_out.append(f"the token {named} is left out: its id {entry['id']} is not the next one")
                continue
            next_id += 1
        missing.append(entry)
    for lines in filter(None, (texts, left_out)):
        log.warning("%s%s", lines[0], f" (and {len(lines) - 1} more)" if lines[1:] else "")
    return missing


def with_missing_tokens(
    tokenizer: dict[str, Any], config: Mapping[str, Any], ids: Mapping[str, Any]
) -> dict[str, Any]:
    """Returns the content of a tokenizer.json with the tokens of missing_tokens(). Content that is not as a
    tokenizer.json should be is returned as it is."""
    try:
        known = {token["content"]: token for token in tokenizer.get("added_tokens") or ()}
        vocabulary = tokenizer["model"]["vocab"]
        if not isinstance(vocabulary, dict):
            vocabulary = {entry[0]: token for token, entry in enumerate(vocabulary)}
        all_ids = vocabulary | {content: token["id"] for content, token in known.items()}
        next_id = max([len(vocabulary), *(token["id"] + 1 for token in known.values())])
        missing = missing_tokens(known, all_ids.get, next_id, config, ids)
    except (AttributeError, IndexError, KeyError, TypeError):
        return tokenizer
    added = known | {token["content"]: token for token in missing}
    return {**tokenizer, "added_tokens": sorted(added.values(), key=lambda token: token["id"])}


def _flags(known: Mapping[str, Token], content: str) -> Token:
    return {name: known.get(content, {}).get(name, False) for name in FLAGS}


def _decoded(config: Mapping[str, Any]) -> Iterator[tuple[str, int, Token]]:
    """Yields content, id and flags."""
    decoder = config.get("added_tokens_decoder")
    for token, entry in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(entry, dict) and isinstance(entry.get("content"), str) and token.isdecimal():
            yield entry["content"], int(token), {name: bool(entry.get(name, False)) for name in FLAGS}


def _listed(ids: Mapping[str, Any]) -> Iterator[tuple[str, int, Token]]:
    for content, token in ids.items():
        if isinstance(token, int):
            yield content, token, {}


def _special(config: Mapping[str, Any]) -> Iterator[str]:
    """Yields the contents of the tokens that are special by their names."""
    values = [config.get(name) for name in _NAMED]
    for name in _LISTS:
        listed = config.get(name)
        values += listed.values() if isinstance(listed, dict) else listed if isinstance(listed, list) else ()
    for value in values:
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str) and len(content.strip()) > 1:
            yield content
