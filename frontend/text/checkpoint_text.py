"""What a frontend takes from a checkpoint, whether that is a folder or one file."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import TokenizerArchive


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
