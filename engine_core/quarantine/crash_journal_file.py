"""The file of a note page: one for each address where an engine core serves."""

import contextlib
import hashlib
import logging
import mmap
import os
from pathlib import Path

from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from pagewire.ipc import transport

log = logging.getLogger(__name__)

_MOST_BYTES = 64 << 20
"""Of a file that may be a page: one of 100,000 rows has 20 MB."""


def journal_path(listen: str) -> Path:
    """Where the next core looks for it that listens there."""
    if listen.startswith("ipc://"):
        return Path(listen.removeprefix("ipc://") + ".notes")
    digest = hashlib.blake2b(listen.encode(), digest_size=8).hexdigest()
    return transport.default_folder() / f"{digest}.notes"


def open_journal(path: Path, num_rows: int) -> CrashJournal:
    """The page for this life; the last one's is read and replaced, in one step, by a file of mode 0600.

    Call it when the address is ours. Where there can be no file, the page is gone when we are.
    """
    past = b""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MOST_BYTES:
            past = path.read_bytes()
    memory = next_journal(past, num_rows)
    try:
        return CrashJournal(_map(path, memory))
    except OSError as error:
        log.warning("no notes are kept (%s): who makes the engine die will not be found out", error.strerror)
        return CrashJournal(memory)


def _map(path: Path, content: bytearray) -> mmap.mmap:
    """A shared mapping of a new file with this content. Raises OSError."""
    fresh = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    with open(fresh, "x+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)  # all of it: where the disk is full, this fails, and no write to the page will
        file.flush()
        memory = mmap.mmap(file.fileno(), len(content))
        os.replace(fresh, path)
    return memory
