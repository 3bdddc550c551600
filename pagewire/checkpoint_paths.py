"""Where a model's files are."""

from pathlib import Path

from pagewire.config import DEMO_MODEL
from pagewire.errors import StartupError


def checkpoint_folder(model: str) -> Path:
    """The folder of a checkpoint; `demo` is the one that ships with the package.

    Raises StartupError when there is no such folder or it holds no config.json.
    """
    folder = Path(__file__).parent / "demo_model" if model == DEMO_MODEL else Path(model).expanduser()
    what = f"cannot load the model {model!r}"
    if not folder.is_dir():
        raise StartupError(
            what,
            f"{folder} is not a folder",
            "give the folder of a Hugging Face checkpoint, or leave MODEL out for the demo model",
        )
    if not (folder / "config.json").is_file():
        raise StartupError(what, f"{folder} holds no config.json", "is this a Hugging Face checkpoint?")
    return folder.resolve()


def default_served_name(model: str) -> str:
    """The name that requests use when none is configured: the folder's."""
    return model if model == DEMO_MODEL else Path(model).expanduser().resolve().name
