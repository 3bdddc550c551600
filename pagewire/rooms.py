"""Finds the rooms of the project: the packages frontend, engine_core, worker and kernels.

In the repository they are top-level packages. An installed wheel has them in pagewire/_rooms, where they do
not collide with other distributions: only our own processes put that folder on their import path, never a
program that uses a client. The plug-ins of packages/ (pagewire.plugins) are found with them.
"""

import sys
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder() -> Path:
    installed = _PACKAGE / "_rooms"
    return installed if installed.is_dir() else _PACKAGE.parent


def make_importable() -> None:
    """Puts the rooms, and the packages of a source tree, first on this process's import path. Idempotent."""
    if str(folder()) not in sys.path[:1]:
        sys.path[:0] = map(str, (folder(), *sorted(folder().glob("packages/*/src"))))
