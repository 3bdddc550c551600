"""The places where a checkpoint keeps chat templates, and which of several is used.

chat_template.jinja                           the default one
additional_chat_templates/tool_use.jinja      for conversations with tools, beside it
chat_template.json, tokenizer_config.json     `chat_template`: one, or a list of named ones
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontend.text.tokenizer_files import CHAT_TEMPLATE_FILE, read_json
from pagewire.checkpoints.files import inside
from pagewire.errors import StartupError

logger = logging.getLogger(__name__)
WHAT = "cannot read the chat template"
DEFAULT, TOOL_USE = "default", "tool_use"
"""Names in lists of templates: for conversations with tools, and for all others."""
TOOL_FILE = f"additional_chat_templates/{TOOL_USE}.jinja"


@dataclass(frozen=True)
class ChatTemplates:
    """The templates of a checkpoint that are used."""

    default: str | None = None
    tool_use: str | None = None
    origin: str = ""  # for messages


def find_templates(folder: Path, config: Mapping[str, Any]) -> ChatTemplates:
    """Returns what the first of the places has. config: of the tokenizer. Raises StartupError."""
    path, for_tools = (inside(folder, name, WHAT) for name in (CHAT_TEMPLATE_FILE, TOOL_FILE))
    if path.exists():
        tool_use = read_template(for_tools) if for_tools.exists() else None
        return ChatTemplates(read_template(path), tool_use, str(path))
    for name, content in (
        ("chat_template.json", read_json(folder / "chat_template.json")),
        ("tokenizer_config.json", config),
    ):
        template = content.get("chat_template")
        named = _by_name(template) if isinstance(template, list) else {DEFAULT: template}
        if isinstance(named.get(DEFAULT), str):
            return ChatTemplates(named[DEFAULT], named.get(TOOL_USE), str(folder / name))
        if isinstance(template, list):
            logger.warning(
                "no chat: %s has the chat templates %s, and none is called %s; choose with --chat-template",
                *(name, ", ".join(sorted(named)), DEFAULT),
            )
    return ChatTemplates()


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
