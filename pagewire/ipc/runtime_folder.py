"""The runtime folder of a service, which holds its sockets and is removed with it.

A supervisor holds a lock on the folder's lock file while it runs. SIGKILL leaves an unlocked folder behind,
which the next start removes.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from pagewire.errors import StartupError

_PREFIX = "pagewire-serve-"
_LONGEST_BASE = 60
"""Bytes; the path of a socket may have 107."""
_SETTLED_S = 60.0
"""Age in seconds above which a folder that was never locked is abandoned."""


@contextlib.contextmanager
def runtime_folder() -> Iterator[Path]:
    """Makes a folder with mode 0700 and removes it at the end. Raises StartupError."""
    base = _base()
    _remove_stale(base)
    with contextlib.ExitStack() as stack:
        try:
            folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=base))
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            lock = stack.enter_context((folder / "lock").open("wb"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(b"locked\n")  # from here on, a process that gets the lock knows that we are gone
            lock.flush()
        except OSError as error:
            raise StartupError(
                "cannot make the runtime folder",
                f"{base}: {error.strerror or error}",
                "make room there, or set XDG_RUNTIME_DIR to a folder that this user may write to",
            ) from error
        yield folder


def _base() -> Path:
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    usable = runtime and len(runtime.encode()) <= _LONGEST_BASE and os.access(runtime, os.W_OK | os.X_OK)
    return Path(runtime if usable else "/tmp")


def _remove_stale(base: Path) -> None:
    """Removes this user's folders whose supervisor is gone."""
    for folder in base.glob(_PREFIX + "*"):
        with contextlib.suppress(OSError):  # another process removes it too, or it is not ours
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
