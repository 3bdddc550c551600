"""What a frontend reads from a checkpoint, a folder or a GGUF file: tokenizer, templates and special tokens.

A folder keeps chat templates in several places:

chat_template.jinja                           the default one
additional_chat_templates/tool_use.jinja      for conversations with tools, beside it
chat_template.json, tokenizer_config.json     `chat_template`: one, or named ones, as a list or an object
"""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import (
    CHAT_TEMPLATE_FILE,
    TokenizerArchive,
    blaming,
    load_tokenizer,
    read_json,
    special_tokens,
    tokenizer_config,
    tried,
)
from pagewire.checkpoints.files import inside
from pagewire.errors import StartupError
from pagewire.gguf.header import is_gguf, read_header
from pagewire.gguf.vocabulary import GGUFVocabulary

log = logging.getLogger(__name__)
WHAT = "cannot read the chat template"
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names in lists of templates: for conversations with tools, and for all others."""
TOOL_FILE = f"additional_chat_templates/{TOOL_USE}.jinja"
GENERATION_CONFIG = "generation_config.json"
TEMPLATE = "tokenizer.chat_template"
TOOL_TEMPLATE = f"{TEMPLATE}.tool_use"
_IDS = {"bos": "bos", "pad": "padding"}


@dataclass(frozen=True)
class CheckpointText:
    """Tokenizer and chat template, with what belongs to them."""

    tokenizer: Tokenizer
    special_tokens: Mapping[str, str]  # bos_token and so on -> the token's text
    token_ids: Mapping[str, Any]  # bos_token_id and pad_token_id, as far as stated; not checked
    generation_config: Path | None  # a file with defaults of sampling, which need not exist
    template: str | None  # the checkpoint's own
    template_origin: str  # for messages
    tool_template: str | None  # for conversations with tools, where the checkpoint has one of their own
    archive: Callable[[str | None], TokenizerArchive]  # from the chat template in use
    response_template: Any = None  # what the checkpoint says of its answers; not checked


def read_checkpoint(path: Path, tokenizer: Path | None = None) -> CheckpointText:
    """Reads a folder's small files, or the metadata of a GGUF file. tokenizer: folder of tokenizer and chat
    template; None: the checkpoint's own. Raises StartupError."""
    if is_gguf(path):
        return _read_gguf(path) if tokenizer is None else _read_folder(tokenizer, None)
    return _read_folder(tokenizer or path, path)


def _read_folder(folder: Path, model: Path | None) -> CheckpointText:
    """folder: of the tokenizer. model: of config.json and generation_config.json; None: there are none."""
    config = tokenizer_config(folder)
    template, origin, for_tools = _find_templates(folder, config)
    return CheckpointText(
        tokenizer=load_tokenizer(folder, config),
        special_tokens=special_tokens(config),
        token_ids=read_json(model / "config.json") if model is not None else {},
        generation_config=model / GENERATION_CONFIG if model is not None else None,
        template=template,
        template_origin=origin,
        tool_template=for_tools,
        archive=lambda chosen: TokenizerArchive(folder, chosen),
        response_template=config.get("response_template"),
    )


def _find_templates(folder: Path, config: Mapping[str, Any]) -> tuple[str | None, str, str | None]:
    """Returns the template that the first of the places has, where it is, and the one for tools. config: of
    the tokenizer. Raises StartupError."""
    path, for_tools = (inside(folder, name, WHAT) for name in (CHAT_TEMPLATE_FILE, TOOL_FILE))
    if path.exists():
        return read_template(path), str(path), read_template(for_tools) if for_tools.exists() else None
    for name, content in (
        ("chat_template.json", read_json(folder / "chat_template.json")),
        ("tokenizer_config.json", config),
    ):
        template = content.get("chat_template")
        if isinstance(template, dict):  # as transformers holds a list
            template = [{"name": each, "template": text} for each, text in template.items()]
        named = _by_name(template) if isinstance(template, list) else {DEFAULT: template}
        if isinstance(named.get(DEFAULT), str):
            return named[DEFAULT], str(folder / name), named.get(TOOL_USE)
        if isinstance(template, list):
            log.warning(
                "no chat: %s has the chat templates %s, and none is called %s; choose with --chat-template",
                *(name, ", ".join(sorted(named)), DEFAULT),
            )
    return None, "", None


def _by_name(templates: list[Any]) -> dict[str, str]:
    found = [each for each in templates if isinstance(each, dict)]
    return {
        each["name"]: each["template"]
        for each in found
        if isinstance(each.get("name"), str) and isinstance(each.get("template"), str)
    }


def read_template(path: Path) -> str:
    """Returns the text of a file. Raises StartupError."""
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise StartupError(WHAT, f"{path}: {error}") from error


def _read_gguf(path: Path) -> CheckpointText:
    header = read_header(path)
    vocabulary = GGUFVocabulary(header)
    special = vocabulary.special_tokens()
    with blaming(path):
        tokenizer = vocabulary.make()
        template = header.metadata.get(TEMPLATE)
        for name in (TEMPLATE, TOOL_TEMPLATE):
            if not isinstance(header.metadata.get(name, ""), str):
                raise StartupError("cannot read the chat template", f"{path.name}: {name} is not a string")
        return CheckpointText(
            tokenizer=tried(Tokenizer(tokenizer)),
            special_tokens=special,
            token_ids={f"{name}_token_id": vocabulary.token_id(long) for name, long in _IDS.items()},
            generation_config=None,
            template=template,
            template_origin=f"{path.name}, {TEMPLATE}",
            tool_template=header.metadata.get(TOOL_TEMPLATE),
            archive=lambda chosen: GGUFTokenizerArchive(tokenizer.to_str(), special, chosen),
        )


class GGUFTokenizerArchive(TokenizerArchive):
    """The files that a checkpoint with this tokenizer would have."""

    def __init__(self, tokenizer: str, special_tokens: dict[str, str], chat_template: str | None) -> None:
        """tokenizer: the content of tokenizer.json."""
        self._contents = {
            "tokenizer.json": tokenizer,
            "tokenizer_config.json": json.dumps(
                {"tokenizer_class": "PreTrainedTokenizerFast", **special_tokens}, sort_keys=True
            ),
        }
        if chat_template is not None:
            self._contents[CHAT_TEMPLATE_FILE] = chat_template

    def _files(self) -> dict[str, bytes]:
        return {name: text.encode() for name, text in self._contents.items()}
