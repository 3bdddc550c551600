"""Files that may change while we serve: certificates, tokens."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
"""Between two looks: some microseconds each. Not inotify: it does not see what happens on network file
systems, and misses what a container runtime swaps under a folder."""

Signature = tuple[tuple[int, ...], ...]


class Refreshable(Protocol):
    """Something made of files."""

    def refresh(self) -> None:
        """Looks whether they have changed. May block; does not raise for what is wrong with them."""


def signature_of(paths: Iterable[Path]) -> Signature:
    """Changes when one of the files does, also when its content has the same size, or when it is gone."""
    return tuple(_signature_of(path) for path in paths)


def _signature_of(path: Path) -> tuple[int, ...]:
    try:
        info = os.stat(path)
    except OSError:
        return ()
    return (info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns)


class FileWatch:
    """Refreshes everything once a second, in a thread: a slow disk does not stop streams."""

    def __init__(self, watched: Sequence[Refreshable], interval: float = INTERVAL_S) -> None:
        self._watched = watched
        self._interval = interval
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begins to look, if there is anything to look at."""
        if self._watched:
            self._task = asyncio.create_task(self._watch(), name="file watch")

    async def stop(self) -> None:
        """Idempotent."""
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
                except Exception:  # a bug of ours: what is in use stays in use
                    log.exception("cannot look whether files have changed")
