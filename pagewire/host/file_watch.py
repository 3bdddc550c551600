"""Refreshes objects whose files may change while the server runs: certificates, tokens."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Seconds between two checks of some microseconds each. inotify does not work on network file systems and
misses files that a container runtime swaps by moving a folder."""

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


class FileWatch:
    """Refreshes objects once a second in a thread, so that a slow disk does not stop streams."""

    def __init__(self, watched: Sequence[Refreshable], interval: float = INTERVAL_S) -> None:
        self._watched = watched
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Starts checking, if there is anything to check."""
        if self._watched:
            self._task = asyncio.create_task(self._watch(), name="file watch")

    async def stop(self) -> None:
        """Stops checking. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            for each in self._watched:
                try:
                    await asyncio.to_thread(each.refresh)
                except Exception:  # a bug: what is in use stays in use
                    log.exception("cannot check whether files have changed")
