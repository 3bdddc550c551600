"""What a GGUF file has for the frontend: tokenizer, chat template, special tokens."""

import json
from pathlib import Path

from frontend.text.checkpoint_text import CheckpointText
from frontend.text.tokenizer import Tokenizer
from frontend.text.tokenizer_files import CHAT_TEMPLATE_FILE, TokenizerArchive, blaming, tried
from pagewire.errors import StartupError
from pagewire.gguf.header import read_header
from pagewire.gguf.vocabulary import GGUFVocabulary

TEMPLATE = "tokenizer.chat_template"
TOOL_TEMPLATE = f"{TEMPLATE}.tool_use"


def read_gguf_text(path: Path) -> CheckpointText:
    """Reads the metadata of a file. Raises StartupError."""
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


_IDS = {"bos": "bos", "pad": "padding"}


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
