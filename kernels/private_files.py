"""Files whose content is executed: those that this user alone may have written."""

import os
import stat
from pathlib import Path

_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def require_private(folder: Path) -> None:
    """Raises PermissionError for a folder that others may write to, or that this process cannot."""
    status = folder.stat()
    if status.st_uid != os.geteuid() or status.st_mode & _OTHERS:
        raise PermissionError(f"others may write to {folder}")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(f"{folder} is read-only")


def read_private(file: Path, most: int) -> bytes:
    """Returns at most so many bytes of a file. Raises OSError; PermissionError for one that is not regular or
    not of this user."""
    with open(os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as opened:
        status = os.fstat(opened.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
            raise PermissionError(f"{file} is no regular file of this user")
        return opened.read(most)
