"""Opens the files of a checkpoint, which is not trusted.

Only regular files of bounded size inside the folder are read. A link that leads out of it could expose a file
of this host to clients (GetTokenizer sends files), and a FIFO would block the process forever.
"""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError

BARE_DECODERS = {
    "Gemma3TextModel": "Gemma3ForCausalLM",
    "LlamaModel": "LlamaForCausalLM",
    "MistralModel": "MistralForCausalLM",
    "Qwen2Model": "Qwen2ForCausalLM",
    "Qwen3Model": "Qwen3ForCausalLM",
}
"""Architectures of config.json that stand for a decoder without its output head, which embeds and cannot
generate; and those of the whole."""
_ENCODERS = "Bert", "DistilBert", "ModernBert", "Roberta", "XLMRoberta"
ENCODERS = {f"{name}{task}": f"{name}Model" for name in _ENCODERS for task in ("Model", "ForMaskedLM")}
"""Architectures of an encoder, which sees all of its prompt at once and embeds; and those of its family. What
predicts masked tokens is not used."""
BIDIRECTIONAL = "use_bidirectional_attention"
"""Field of config.json: true makes an encoder of a decoder."""
CLASSIFIERS = {
    f"{name}ForSequenceClassification": f"{name}ForCausalLM"
    for name in (
        "Gemma",
        "Gemma2",
        "Llama",
        "Mistral",
        "Mixtral",
        "Phi3",
        "Qwen2",
        "Qwen2Moe",
        "Qwen3",
        "Qwen3Moe",
    )
} | {f"{name}ForSequenceClassification": f"{name}Model" for name in _ENCODERS}
"""Architectures of a decoder with `score.weight` in place of its output head, and of an encoder with a
classifier; and those of the decoder that generates, and of the encoder's family."""
_SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")
MAX_JSON_BYTES = 64 << 20
"""Size limit of files that are read whole. The largest known, of tokenizers, have 35 MB."""
MAX_VALUES = 3 << 19
"""Of such a file, a pair counting as one and an object as four: a tokenizer takes up to 500 bytes for each.
The largest known one has 850,000."""
_STRING = re.compile(rb'"[^"]*"')
_NO_SIGNS = bytes(set(range(256)) - set(b'"[]{,'))


def classifier(config: Mapping[str, Any]) -> str:
    """Returns the architecture of a config.json that classifies; empty for any other."""
    return _first_of(config, CLASSIFIERS)


def classifies_by_encoder(config: Mapping[str, Any]) -> bool:
    """Returns whether a config.json is that of an encoder with a classifier."""
    return CLASSIFIERS.get(classifier(config), "") in ENCODERS


def why_not_generate(config: Mapping[str, Any]) -> str:
    """Returns why the model of a config.json generates no text, classifiers apart; empty: it does."""
    if config.get(BIDIRECTIONAL) is True:
        return f"{BIDIRECTIONAL} makes it an encoder"
    if encoder := _first_of(config, ENCODERS):
        return f"{encoder} is an encoder"
    bare = _first_of(config, BARE_DECODERS)
    return f"{bare} is a decoder without an output head" if bare else ""


def _first_of(config: Mapping[str, Any], known: Mapping[str, str]) -> str:
    names = config.get("architectures")
    if not isinstance(names, list):
        return ""
    return next((name for name in names if isinstance(name, str) and name in known), "")


def inside(folder: Path, name: str, what: str) -> Path:
    """Returns the path of a file of the checkpoint, whether it exists or not.

    Links are resolved first. They may lead to the folder `blobs` two levels up, as in a snapshot of the
    Hugging Face cache; anything else raises StartupError with `what`.
    """
    folder = folder.resolve()
    try:
        path = (folder / name).resolve()
        is_odd = path.exists() and not path.is_file()
    except (OSError, ValueError, RuntimeError) as error:  # a null byte, a loop of links
        raise StartupError(what, f"{name!r} is not a file: {error}") from error
    cache = folder.parent.parent / "blobs" if folder.parent.name == "snapshots" else folder
    if Path(name).is_absolute() or not (path.is_relative_to(folder) or path.is_relative_to(cache)):
        raise StartupError(what, f"{name!r} is outside the folder of the checkpoint")
    if is_odd:
        raise StartupError(what, f"{name!r} is not a file")
    return path


def read_whole(folder: Path, name: str, what: str) -> bytes | None:
    """Returns the content of a JSON file of bounded size and number of values, or None if it does not exist.
    Raises StartupError."""
    path = inside(folder, name, what)
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise StartupError(what, f"{name} has {size} bytes, more than {MAX_JSON_BYTES}")
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartupError(what, f"{name} cannot be read: {error.strerror}") from error
    signs = content.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _NO_SIGNS)
    signs = _STRING.sub(b"", signs.replace(b'""', b""))  # nearly all strings have none of the signs
    values = signs.count(b",") - signs.count(b"[,]") + 3 * signs.count(b"{")
    if values > MAX_VALUES:
        raise StartupError(what, f"{name} has {values} values, more than {MAX_VALUES}")
    return content


def config_overrides(text: str) -> dict[str, Any]:
    """Returns the fields of --hf-overrides. Raises StartupError, also for a field that cannot be replaced."""
    values = object_of_flag("--hf-overrides", text) if text else {}
    if "quantization_config" in values:
        why = "quantization_config says how the weights are stored, which no flag changes"
        raise StartupError("cannot use --hf-overrides", why)
    return values


def object_of_flag(flag: str, text: str) -> dict[str, Any]:
    """Returns the JSON object that the value of a flag is. Raises StartupError."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StartupError(f"cannot use {flag}", f"it is not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise StartupError(f"cannot use {flag}", "it is not a JSON object")
    return values


def read_object(folder: Path, name: str, what: str) -> dict[str, Any] | None:
    """Returns the JSON object in a small file, or None if it does not exist. Raises StartupError."""
    content = read_whole(folder, name, what)
    if content is None:
        return None
    try:
        text = content.decode(json.detect_encoding(content), "surrogatepass")
        values = json.loads(text)
        if _SURROGATE.search(text):  # a character of two halves, or one half alone, which no text can have
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise StartupError(what, f"{name} is not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise StartupError(what, f"{name} is not a JSON object")
    return values
