"""Finds a checkpoint: a folder, a GGUF file, or a model by its name on the Hugging Face Hub.

The name is organisation/model, or organisation/model@revision. `huggingface_hub` downloads it, with a
progress bar, resuming what was interrupted, into its usual cache (HF_HOME); HF_TOKEN, HF_ENDPOINT and
HF_HUB_OFFLINE mean what they mean everywhere. A path that exists is never taken for a name.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from pagewire.config import DEMO_MODEL, EngineConfig, FrontendConfig, ModelConfig, ServeConfig
from pagewire.errors import StartupError, install_hint
from pagewire.gguf.header import is_gguf

_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+", re.ASCII)
"""A name on the Hugging Face Hub, such as organisation/model."""


def checkpoint_path(model: str) -> Path:
    """Returns the GGUF file or the folder of a checkpoint. Raises StartupError if it is not there."""
    path = Path(model).expanduser()
    if not is_gguf(path) or path.is_dir():
        return checkpoint_folder(model)
    if not path.is_file():
        raise StartupError(f"cannot load the model {model!r}", f"{path} is not a file")
    return path.resolve()


def checkpoint_folder(model: str) -> Path:
    """Returns the folder of a checkpoint; `demo` is the one that ships with the package.

    Raises StartupError if there is no such folder or it has no config.json.
    """
    folder = Path(__file__).parent.parent / "demo_model" if model == DEMO_MODEL else Path(model).expanduser()
    what = f"cannot load the model {model!r}"
    if not folder.is_dir():
        raise StartupError(
            what,
            f"{folder} is not a folder",
            _download_hint(model),
        )
    if not (folder / "config.json").is_file():
        todo = "give the folder that has config.json and the weights, or a GGUF file"
        raise StartupError(what, f"{folder} has no config.json", todo)
    return folder.resolve()


def _download_hint(model: str) -> str:
    if _HUB_NAME.fullmatch(model):
        folder = model.partition("/")[2]
        return f"only `pagewire serve` downloads; here: hf download {model} --local-dir {folder}"
    return (
        "give the folder of a Hugging Face checkpoint or a GGUF file, or leave MODEL out for the demo model"
    )


def tokenizer_folder(tokenizer: str) -> Path | None:
    """Returns the folder that --tokenizer names; None: it names none. Raises StartupError."""
    if not tokenizer:
        return None
    folder = Path(tokenizer).expanduser()
    if not folder.is_dir():
        raise StartupError("cannot read the tokenizer", f"--tokenizer: {folder} is not a folder")
    return folder.resolve()


def default_served_name(model: str) -> str:
    """Returns the name that requests use if none is configured: that of the folder, or of the GGUF file
    without its ending."""
    if model == DEMO_MODEL:
        return model
    path = Path(model).expanduser().resolve()
    return path.stem if is_gguf(path) else path.name


C = TypeVar("C", bound=ModelConfig)

_NAME = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+))?", re.ASCII)
_OF_TOKENIZERS = ("*.json", "*.jinja")
OF_CONFIG = ("*.json",)
_NEEDED = (*_OF_TOKENIZERS, "*.safetensors")
_OF_ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")
_NOT_NEEDED = ["*/*", "consolidated*"]
"""Files of other formats, in folders or beside the weights."""


@dataclass(frozen=True, slots=True)
class HubName:
    """A repository of the hub. revision: branch, tag or commit; None: the main branch."""

    repo: str
    revision: str | None = None


def hub_name(model: str) -> HubName | None:
    """Returns what a model's name means on the hub; None: it is a path, or no such name."""
    match = _NAME.fullmatch(model)
    if match is None or Path(model).expanduser().exists():
        return None
    return HubName(match["repo"], match["revision"])


def with_local_model(config: C, patterns: Sequence[str] = _NEEDED) -> C:
    """Returns the configuration with the folders of a model, a tokenizer and adapters (--lora) that are named
    as on the hub, after downloading them if necessary. Requests for the model then use the repository's name.
    patterns: of files of the model that are downloaded. Raises StartupError."""
    name, tokenizer = hub_name(config.model), hub_name(config.tokenizer)
    revision = config.revision if isinstance(config, ServeConfig) else ""
    cache = config.download_dir if isinstance(config, EngineConfig) else ""
    if tokenizer is not None:
        config = replace(config, tokenizer=str(download(tokenizer, cache, _OF_TOKENIZERS)))
    if isinstance(config, EngineConfig) and hub_adapters(config.lora):
        config = replace(config, lora=tuple(_with_local_adapter(part, cache) for part in config.lora))
    if name is None:
        if revision:
            why = f"{config.model!r} is not a name on the Hugging Face Hub"
            raise StartupError("cannot use --revision", why, "leave it out")
        return config
    if revision:
        if name.revision not in (None, revision):
            why = f"MODEL says {name.revision!r}, and --revision {revision!r}"
            raise StartupError(f"cannot load the model {name.repo!r}", why, "leave one of them out")
        name = replace(name, revision=revision)
    changed = replace(config, model=str(download(name, cache, patterns)))
    if isinstance(changed, FrontendConfig) and not changed.served_model_name:
        changed = replace(changed, served_model_name=(name.repo,))
    return changed


def hub_adapters(lora: Sequence[str]) -> bool:
    """Returns whether any NAME=SOURCE of --lora names an adapter as on the hub."""
    return any(map(_hub_adapter, lora))


def _hub_adapter(part: str) -> HubName | None:
    return hub_name(part.partition("=")[2])


def _with_local_adapter(part: str, cache: str) -> str:
    """Returns a NAME=SOURCE of --lora with a folder."""
    name = _hub_adapter(part)
    return part if name is None else f"{part.partition('=')[0]}={download_adapter(name, cache)}"


def download_adapter(name: HubName, cache: str) -> Path:
    """Returns the folder of an adapter's files in a cache. cache: see download(). Raises StartupError."""
    folder = download(name, cache, _OF_ADAPTERS, kind="adapter")
    if not (folder / _OF_ADAPTERS[0]).is_file():
        what = f"cannot load the adapter {name.repo!r}"
        raise StartupError(what, f"the repository has no {_OF_ADAPTERS[0]}", "is it a model?")
    return folder


def hub_cache(cache: str) -> Path:
    """Returns the folder in which repositories of the hub are. cache: see download()."""
    home = os.environ.get("HF_HOME") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "huggingface"
    )
    named = os.environ.get("HF_HUB_CACHE") or os.environ.get("HUGGINGFACE_HUB_CACHE")
    return Path(cache or named or os.path.join(home, "hub")).expanduser().resolve()


def is_hub_name(name: str) -> bool:
    """Returns whether a name may be that of a repository of the hub, with or without a revision."""
    return _NAME.fullmatch(name) is not None and not name.startswith(".")


def download(
    name: HubName, cache: str = "", patterns: Sequence[str] = _NEEDED, *, kind: str = "model"
) -> Path:
    """Returns the folder of a repository's files in a cache. cache: its folder; "": the library's own.
    patterns: of files that are downloaded. kind: "model" or "adapter", for errors. Raises StartupError."""
    what = f"cannot load the {kind} {name.repo!r}"
    try:
        import huggingface_hub
        from huggingface_hub import errors
    except ImportError:
        raise StartupError(what, "huggingface_hub is not installed", install_hint("frontend")) from None
    try:
        folder = huggingface_hub.snapshot_download(
            name.repo,
            revision=name.revision,
            cache_dir=Path(cache).expanduser() if cache else None,
            allow_patterns=list(patterns),
            ignore_patterns=_NOT_NEEDED,
        )
    except errors.GatedRepoError:
        raise StartupError(
            what,
            "its owner grants access one by one, and your account has none",
            f"ask for it at https://huggingface.co/{name.repo}, then: hf auth login",
        ) from None
    except errors.RevisionNotFoundError:
        raise StartupError(what, f"it has no revision {name.revision!r}") from None
    except errors.RepositoryNotFoundError:
        raise StartupError(
            what,
            f"the hub has no such {kind}, or your account may not see it",
            f"check the name; for a private {kind}: hf auth login, or HF_TOKEN",
        ) from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise StartupError(
            what,
            "it is not in the local cache, and the hub cannot be reached",
            f"check the network and HF_HUB_OFFLINE, or on a machine with access: hf download {name.repo}",
        ) from None
    except (errors.HfHubHTTPError, errors.HFValidationError, OSError) as error:
        lines = str(error).strip().splitlines()
        raise StartupError(what, lines[0] if lines else type(error).__name__) from None
    return Path(folder)
