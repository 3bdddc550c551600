"""The tokenizer's files: loading them at start-up, and sending them to clients as a zip archive."""

import contextlib
import hashlib
import io
import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, processors

from frontend.text import tekken
from frontend.text.tokenizer import Tokenizer
from pagewire.checkpoints.added_tokens import FLAGS, missing_tokens
from pagewire.checkpoints.files import MAX_VALUES, read_object, read_whole
from pagewire.errors import StartupError

_WHAT, _WHAT_TOKENIZER = "cannot read the checkpoint", "cannot read the tokenizer"
_TRIAL = "Hello, 1 world!"
CHAT_TEMPLATE_FILE = "chat_template.jinja"
ARCHIVED = (
    "added_tokens.json",
    CHAT_TEMPLATE_FILE,
    "chat_template.json",
    "merges.txt",
    "special_tokens_map.json",
    tekken.FILE,
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
)
"""Files that GetTokenizer sends, where a checkpoint has them."""


def load_tokenizer(folder: Path, config: Mapping[str, Any]) -> Tokenizer:
    """Loads a checkpoint's tokenizer. config: its tokenizer_config.json. Raises StartupError."""
    ids = read_json(folder / "added_tokens.json")

    def complete(tokenizer: "tokenizers.Tokenizer") -> Tokenizer:
        _add_missing(tokenizer, config, ids)
        return tried(Tokenizer(tokenizer))

    if (content := read_whole(folder, "tokenizer.json", _WHAT_TOKENIZER)) is not None:
        with blaming(folder / "tokenizer.json"):
            return complete(tokenizers.Tokenizer.from_buffer(content))
    vocabulary, merges = (read_whole(folder, name, _WHAT_TOKENIZER) for name in ("vocab.json", "merges.txt"))
    if vocabulary is not None and merges is not None:
        with blaming(folder / "vocab.json", folder / "merges.txt"):
            if merges.count(b"\n") > MAX_VALUES:
                raise StartupError(_WHAT_TOKENIZER, f"merges.txt has more than {MAX_VALUES}")
            return complete(_byte_level_bpe(folder, config))
    if (content := read_whole(folder, tekken.FILE, _WHAT_TOKENIZER)) is not None:
        with blaming(path := folder / tekken.FILE):
            return tried(Tokenizer(tekken.make_tekken(json.loads(content), str(path))))
    raise StartupError(
        _WHAT_TOKENIZER,
        f"{folder} holds neither tokenizer.json nor {tekken.FILE} nor vocab.json with merges.txt",
        "save the tokenizer with transformers, which writes tokenizer.json",
    )


@contextlib.contextmanager
def blaming(*paths: Path) -> Iterator[None]:
    """Attributes every error to these files. The library raises bare Exception, and where it panics, a
    BaseException."""
    names = ", ".join(map(str, paths))
    try:
        yield
    except StartupError:
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise StartupError(_WHAT_TOKENIZER, f"{names}: {error}") from error


def tried(tokenizer: Tokenizer) -> Tokenizer:
    """Returns the tokenizer after encoding and decoding a text: some errors of a file show only then."""
    token_ids = tokenizer.encode(_TRIAL, add_special_tokens=True).token_ids
    tokenizer.decode([token_ids], skip_special_tokens=False)
    return tokenizer


def _add_missing(
    tokenizer: "tokenizers.Tokenizer", config: Mapping[str, Any], ids: Mapping[str, Any]
) -> None:
    """Adds the tokens that the files beside tokenizer.json name. ids: of added_tokens.json."""
    added = tokenizer.get_added_tokens_decoder()
    known = {
        each.content: {"id": token, "content": each.content} | {name: getattr(each, name) for name in FLAGS}
        for token, each in added.items()
    }
    next_id = max([tokenizer.get_vocab_size(with_added_tokens=False), *(token + 1 for token in added)])
    missing = missing_tokens(known, tokenizer.token_to_id, next_id, config, ids)
    tokens = (AddedToken(each["content"], **{name: each[name] for name in FLAGS}) for each in missing)
    # Many at once: each call takes as long as there are tokens.
    for special, group in groupby(tokens, key=lambda token: token.special):
        (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(list(group))


def _byte_level_bpe(folder: Path, config: Mapping[str, Any]) -> "tokenizers.Tokenizer":
    """Builds a GPT-2 tokenizer, as checkpoints of GPT-2 and OPT define it."""
    model = models.BPE.from_file(f"{folder}/vocab.json", f"{folder}/merges.txt")
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


def tokenizer_config(folder: Path) -> dict[str, Any]:
    """Returns what a checkpoint says of its tokenizer beside it. Where that is tekken.json alone, its control
    tokens have the names of mistral-common. Raises StartupError."""
    named = {**read_json(folder / "special_tokens_map.json"), **read_json(folder / "tokenizer_config.json")}
    return named or (dict(tekken.ENDS) if (folder / tekken.FILE).exists() else {})


def special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Returns bos_token, eos_token and so on -> the token's text."""
    found: dict[str, str] = {}
    for name, value in config.items():
        text = value.get("content") if isinstance(value, dict) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def read_json(path: Path) -> dict[str, Any]:
    """Returns a JSON object; empty when there is no such file. Raises StartupError."""
    return read_object(path.parent, path.name, _WHAT) or {}


class TokenizerArchive:
    """The zip archive that GetTokenizer sends. The same files give the same bytes."""

    def __init__(self, folder: Path, chat_template: str | None) -> None:
        """chat_template: the one in use, which may differ from the checkpoint's."""
        self._folder = folder
        self._chat_template = chat_template

    @cached_property
    def data(self) -> bytes:
        """The archive's bytes. Reading and compressing take a moment: not for the event loop."""
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
        """Hexadecimal digest of `data`."""
        return hashlib.sha256(self.data).hexdigest()

    def _files(self) -> dict[str, bytes]:
        read = ((name, read_whole(self._folder, name, _WHAT)) for name in ARCHIVED)
        contents = {name: content for name, content in read if content is not None}
        if self._chat_template is not None:
            contents[CHAT_TEMPLATE_FILE] = self._chat_template.encode()
        return contents
