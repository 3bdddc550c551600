"""Refreshes objects whose files may change while the server runs: certificates, tokens."""

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two checks of some microseconds each. inotify does not work on network file systems and
misses files that a container runtime swaps by moving a folder."""

MAX_BYTES = 16 << 20
"""Of a file that is read again while the server runs."""
SLOW_S = 10.0
"""Seconds after which a check that has not returned is logged."""

Signature = tuple[tuple[int, ...], ...]


class Refreshable(Protocol):
    """An object built from files."""

    def refresh(self) -> None:
        """Reads the files again if they have changed. May block; invalid files raise nothing."""


def signature_of(paths: Iterable[Path]) -> Signature:
    """Returns a value that changes when one of the files changes (also with equal size) or disappears."""
    return tuple(_signature_of(path) for path in paths)


def _signature_of(path: Path) -> tuple[int, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


def read_small(path: Path) -> bytes:
    """Returns the content of a regular file of at most MAX_BYTES. Raises OSError.

    A FIFO is not opened: that would block until a process writes to it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise OSError(errno.EFBIG, f"more than {MAX_BYTES >> 20} MiB")
    return content


def exposure(path: Path, bits: int) -> str:
    """Returns why users other than this one and root have the permissions `bits` of a file: its mode or its
    owner; "": they do not. Raises OSError."""
    info = os.stat(path)
    if info.st_uid and info.st_uid != os.geteuid():  # 0 on Windows
        return f"it belongs to user {info.st_uid}"
    return f"its mode is {stat.S_IMODE(info.st_mode):04o}" if info.st_mode & bits else ""


class FileWatch:
    """Refreshes objects once a second in threads, so that a slow disk does not stop streams. Each object
    has a task of its own: one that hangs does not stop the others."""

    def __init__(
        self, watched: Sequence[Refreshable], interval: float = INTERVAL_S, slow: float = SLOW_S
    ) -> None:
        """interval, slow: seconds."""
        self._watched = watched
        self._interval = interval
        self._slow = slow
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._watch(each), name="file watch") for each in self._watched]

    async def stop(self) -> None:
        """Stops checking. Idempotent."""
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _watch(self, watched: Refreshable) -> None:
        while True:
            await asyncio.sleep(self._interval)
            check = asyncio.ensure_future(asyncio.to_thread(watched.refresh))
            try:
                if not (await asyncio.wait([check], timeout=self._slow))[0]:
                    log.error(
                        "reading files again takes long (%s): until it returns, what was read last is in use",
                        type(watched).__name__,
                    )
                await check
            except Exception:  # a bug: what is in use stays in use
                log.exception("cannot check whether files have changed")
            finally:
                check.cancel()
