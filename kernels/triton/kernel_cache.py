"""Where Triton keeps machine code: in a folder that others cannot write to, each file with a digest.

Triton executes what lies in its cache: kernels on the device, and launchers, which are libraries, in the
process. By itself it takes any folder, and any file that is there, torn ones included.
"""

import atexit
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from triton import knobs
from triton.runtime.cache import FileCacheManager

from kernels.private_files import read_private, require_private

logger = logging.getLogger(__name__)

DIGEST = ".sha256"
"""Behind the name of a file: its digest."""
_MOST_BYTES = 256 << 20
"""Limit for a file, far above the largest kernel."""


class CheckedCache(FileCacheManager):  # type: ignore[misc]  # triton has no types
    """The files of one kernel. What is damaged, or has no digest, is not there: it is compiled again."""

    def __init__(self, key: str, override: bool = False, dump: bool = False) -> None:
        self._is_checked = not (override or dump)  # those are for developers of kernels, by their own files
        if self._is_checked:
            _make_private(Path(knobs.cache.dir, key))
        super().__init__(key, override=override, dump=dump)

    def put(self, data: Any, filename: str, binary: bool = True) -> str:
        """Writes a file; returns its path."""
        content = data if isinstance(data, bytes) else str(data).encode()
        path: str = super().put(content, filename)
        if self._is_checked:
            super().put(hashlib.sha256(content).hexdigest().encode(), filename + DIGEST)
        return path

    def get_file(self, filename: str) -> str | None:
        """Returns the path of a file; None: there is none that is whole."""
        path: str | None = super().get_file(filename)
        if path is None or not self._is_checked or _is_whole(Path(path)):
            return path
        logger.warning("%s is damaged, the kernel is compiled again", path)
        return None

    def get_group(self, filename: str) -> dict[str, str] | None:
        """Returns the files that were written together, by name; None unless all of them are whole."""
        if not self._is_checked:
            group: dict[str, str] | None = super().get_group(filename)
            return group
        listed = self.get_file(f"__grp__{filename}")
        if listed is None:
            return None
        paths: dict[str, str] = json.loads(Path(listed).read_bytes())["child_paths"]
        return paths if all(self.get_file(name) == path for name, path in paths.items()) else None


def _make_private(folder: Path) -> None:
    """Makes the folder of a kernel. One that others may write to, or that is no folder, is emptied."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        require_private(folder)
    except PermissionError as error:
        logger.warning("the kernel is compiled again: %s", error)
        shutil.rmtree(folder)
        folder.mkdir(mode=0o700)


def _is_whole(file: Path) -> bool:
    try:
        content = read_private(file, _MOST_BYTES)
        digest = read_private(file.with_name(file.name + DIGEST), 128)
    except OSError:
        return False
    return hashlib.sha256(content).hexdigest().encode() == digest


@cache
def use_checked_cache() -> None:
    """Has Triton keep what it compiles in a private folder, and check what it reads there. A cache of another
    kind (TRITON_CACHE_MANAGER) is left alone."""
    if "TRITON_CACHE_MANAGER" not in os.environ:
        knobs.cache.manager_class = CheckedCache
        knobs.cache.dir = str(private_folder(os.environ))


def private_folder(environment: Mapping[str, str]) -> Path:
    """Returns the folder to use: TRITON_CACHE_DIR, else one in this user's cache, else one that ends with
    this process. A warning says why those before it are not used."""
    named = environment.get("TRITON_CACHE_DIR")
    base = environment.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    folders = [Path(named)] if named else []
    for folder in [*folders, Path(base, "pagewire", "triton")]:
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            require_private(folder)
        except OSError as error:
            logger.warning("Triton's kernels are not kept in %s: %s", folder, error)
        else:
            return folder
    logger.warning("Triton's kernels are compiled at every start")
    scratch = tempfile.mkdtemp(prefix="pagewire-triton-")
    atexit.register(shutil.rmtree, scratch, ignore_errors=True)
    return Path(scratch)
