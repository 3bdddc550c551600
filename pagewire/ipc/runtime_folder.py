"""The folder of one running service: its sockets live there, and go with it.

A supervisor holds a lock on the folder's lock file as long as it lives. SIGKILL leaves a folder
behind that nobody locks: the next start removes it.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

_PREFIX = "pagewire-serve-"
_LONGEST_BASE = 60
"""Bytes; a socket's path may have 107."""
_SETTLED_S = 60.0
"""A folder that was never locked is older than this only if its maker died between two lines."""


@contextlib.contextmanager
def runtime_folder() -> Iterator[Path]:
    """A fresh folder with mode 0700, removed at the end."""
    base = _base()
    _remove_stale(base)
    folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
    try:
        with (folder / "lock").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(b"locked\n")  # from here on: whoever gets the lock knows that we are gone
            lock.flush()
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime and len(runtime.encode()) <= _LONGEST_BASE and os.access(runtime, os.W_OK | os.X_OK)
    return Path(runtime if usable else "/tmp")


def _remove_stale(base: Path) -> None:
    """Removes this user's folders whose supervisor is gone."""
    for folder in base.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # somebody else removes it too, or it is not ours
            if folder.lstat().st_uid == os.getuid() and _is_stale(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_stale(folder: Path) -> bool:
    lock_file = folder / "lock"
    with contextlib.suppress(FileNotFoundError):
        try:
            with lock_file.open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if lock_file.stat().st_size > 0:
            return True
    return time.time() - folder.stat().st_mtime > _SETTLED_S
