"""Removes folders of machine code that no process has used for a while: those of earlier versions.

A process that uses a folder holds a shared lock on it as long as it lives, and has set its time; a folder is
removed under an exclusive lock. So it is never one that a process uses, of this version or of another.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX, REMOVED = "kernels-", "removed-"
"""Of the names of folders: with machine code, and of those that are being removed."""
UNUSED_S = 30 * 24 * 3600.0
"""Seconds without a start, after which a folder is removed."""

_held: dict[Path, int] = {}
"""Open folders, whose locks this process holds."""


def hold(folder: Path) -> None:
    """Makes a folder unless it is there, and keeps it from being removed as long as this process lives. Where
    the file system has no locks, no folder is removed. Raises OSError."""
    while folder not in _held:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):  # removed just now
            os.utime(folder)
            opened = os.open(folder, os.O_RDONLY)
            with contextlib.suppress(OSError):
                fcntl.flock(opened, fcntl.LOCK_SH)
            if _lies_at(opened, folder):
                _held[folder] = opened
            else:
                os.close(opened)


def remove_unused(own: Path, now: float | None = None) -> None:
    """Removes the folders beside `own` that are not in use and have not been for UNUSED_S. now: seconds since
    the epoch; None: this moment. What cannot be removed stays."""
    before = (time.time() if now is None else now) - UNUSED_S
    with contextlib.suppress(OSError):
        for folder in own.parent.iterdir():
            if folder.name.startswith(REMOVED):  # by a process that was killed
                shutil.rmtree(folder, ignore_errors=True)
            elif folder != own and folder.name.startswith(PREFIX):
                _remove(folder, before)


def _remove(folder: Path, before: float) -> None:
    """Unless it is locked, or has been used since `before`."""
    with contextlib.suppress(OSError):
        if folder.stat().st_mtime >= before:
            return
        opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if folder.stat().st_mtime < before and _lies_at(opened, folder):
                away = tempfile.mkdtemp(prefix=REMOVED, dir=folder.parent)
                os.replace(folder, away)
                shutil.rmtree(away, ignore_errors=True)
        finally:
            os.close(opened)


def _lies_at(opened: int, folder: Path) -> bool:
    """Whether an open folder is the one that has this name now."""
    try:
        return os.path.samestat(os.fstat(opened), folder.stat())
    except FileNotFoundError:
        return False
