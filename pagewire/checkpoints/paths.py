"""Finds a checkpoint: a folder, or a GGUF file."""

import re
from pathlib import Path

from pagewire.config import DEMO_MODEL
from pagewire.errors import StartupError
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
        raise StartupError(what, f"{folder} has no config.json", "is this a Hugging Face checkpoint?")
    return folder.resolve()


def _download_hint(model: str) -> str:
    if _HUB_NAME.fullmatch(model):
        folder = model.partition("/")[2]
        return f"only `pagewire serve` downloads; here: hf download {model} --local-dir {folder}"
    return (
        "give the folder of a Hugging Face checkpoint or a GGUF file, or leave MODEL out for the demo model"
    )


def default_served_name(model: str) -> str:
    """Returns the name that requests use if none is configured: that of the folder, or of the GGUF file
    without its ending."""
    if model == DEMO_MODEL:
        return model
    path = Path(model).expanduser().resolve()
    return path.stem if is_gguf(path) else path.name
