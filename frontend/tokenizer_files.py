"""The files of a tokenizer: reading them at start-up, and handing them to clients as a zip."""

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from frontend.tokenizer import Tokenizer
from pagewire.errors import StartupError

CHAT_TEMPLATE_FILE = "chat_template.jinja"
ARCHIVED = (
    "added_tokens.json",
    CHAT_TEMPLATE_FILE,
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""What GetTokenizer sends, as far as a checkpoint has it."""


def load_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer of a checkpoint. config: its tokenizer_config.json. Raises StartupError."""
    path = folder / "tokenizer.json"
    if path.is_file():
        try:
            return Tokenizer(tokenizers.Tokenizer.from_file(str(path)))
        except Exception as error:  # the library raises bare Exception
            raise StartupError("cannot read the tokenizer", f"{path}: {error}") from error
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    if vocabulary.is_file() and merges.is_file():
        return Tokenizer(_byte_level_bpe(vocabulary, merges, config))
    raise StartupError(
        "cannot read the tokenizer",
        f"{folder} holds neither tokenizer.json nor vocab.json with merges.txt",
        "save the tokenizer with transformers, which writes tokenizer.json",
    )


def _byte_level_bpe(vocabulary: Path, merges: Path, config: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    """GPT-2's kind, as the checkpoints of GPT-2 and OPT have it."""
    try:
        model = models.BPE.from_file(str(vocabulary), str(merges))
    except Exception as error:  # the library raises bare Exception
        raise StartupError("cannot read the tokenizer", f"{vocabulary}, {merges}: {error}") from error
    tokenizer = tokenizers.Tokenizer(model)
    prefix_space = bool(config.get("add_prefix_space", False))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space)
    tokenizer.decoder = decoders.ByteLevel()
    special = special_tokens(config)
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in dict.fromkeys(special.values())])
    begin = special.get("bos_token")
    if config.get("add_bos_token") and begin is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[begin, "$A"], special_tokens=[(begin, tokenizer.token_to_id(begin))]
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """bos_token, eos_token and so on -> the token's text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object; empty when there is no such file. Raises StartupError."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StartupError("cannot read the checkpoint", f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise StartupError("cannot read the checkpoint", f"{path} does not hold a JSON object")
    return value


class TokenizerArchive:
    """The zip that GetTokenizer sends. The same files make the same bytes."""

    def __init__(self, folder: Path, chat_template: str | None) -> None:
        """chat_template: the one in use, which may not be the checkpoint's."""
        self._folder = folder
        self._chat_template = chat_template

    @cached_property
    def data(self) -> bytes:
        """The zip. Reading and packing take a moment: not for the event loop."""
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
            for name, content in sorted(self._files().items()):
                entry = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                entry.external_attr = 0o644 << 16
                archive.writestr(entry, content)
        return buffer.getvalue()

    @cached_property
    def sha256(self) -> str:
        """Of `data`, hexadecimal."""
        return hashlib.sha256(self.data).hexdigest()

    def _files(self) -> dict[str, bytes]:
        files = {name: self._folder / name for name in ARCHIVED}
        contents = {name: path.read_bytes() for name, path in files.items() if path.is_file()}
        if self._chat_template is not None:
            contents[CHAT_TEMPLATE_FILE] = self._chat_template.encode()
        return contents
