"""Opening the files of a checkpoint: it came from somewhere, and is not believed.

What is read is a regular file of a size that makes sense, inside the folder. A link that leads out of it
could make us show a stranger's client some file of this machine (GetTokenizer sends files), and a FIFO would
keep the process waiting without end.
"""

import json
from pathlib import Path
from typing import Any

from pagewire.errors import StartupError

MAX_JSON_BYTES = 64 << 20
"""Of a file that is read whole. The largest there are, indexes of tensors, have some MiB."""


def inside(folder: Path, name: str, what: str) -> Path:
    """The path of a file of the checkpoint, whether it exists or not.

    Links are followed first. They may lead to the folder `blobs` two levels up, which is how the
    Hugging Face cache stores a snapshot. what: of the StartupError for anything else.
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
    """What a small file holds; None when there is none. Raises StartupError."""
    path = inside(folder, name, what)
    try:
        size = path.stat().st_size
        if size > MAX_JSON_BYTES:
            raise StartupError(what, f"{name} has {size} bytes, more than {MAX_JSON_BYTES}")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartupError(what, f"{name} cannot be read: {error.strerror}") from error


def read_object(folder: Path, name: str, what: str) -> dict[str, Any] | None:
    """The JSON object in a small file; None when there is none. Raises StartupError."""
    content = read_whole(folder, name, what)
    if content is None:
        return None
    try:
        values = json.loads(content)
    except (ValueError, RecursionError) as error:  # the latter: nested too deeply
        raise StartupError(what, f"{name} is not readable JSON: {error}") from error
    if not isinstance(values, dict):
        raise StartupError(what, f"{name} is not a JSON object")
    return values
