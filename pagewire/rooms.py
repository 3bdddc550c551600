"""Finds the rooms of the project: the packages frontend, engine_core, worker and kernels.

In the repository they are top-level packages. An installed wheel has them in pagewire/_rooms, where they do
not collide with other distributions: only our own processes put that folder on their import path, never a
program that uses a client.
"""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder() -> Path:
    """Returns the folder that holds the rooms."""
    installed = _PACKAGE / "_rooms"
    return installed if installed.is_dir() else _PACKAGE.parent


def make_importable() -> None:
    """Puts the rooms first on the import path of this process. Idempotent."""
    if str(folder()) not in sys.path[:1]:
        sys.path.insert(0, str(folder()))
