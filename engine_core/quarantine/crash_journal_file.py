"""The file of a crash journal: one for each address that an engine core listens on."""

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
"""A larger file is not a journal: one of 100,000 rows has 18 MB."""


def journal_path(listen: str) -> Path:
    """Returns the path where the next core that listens on this address looks for the journal."""
    if listen.startswith("ipc://"):
        return Path(listen.removeprefix("ipc://") + ".notes")
    digest = hashlib.blake2b(listen.encode(), digest_size=8).hexdigest()
    return transport.default_folder() / f"{digest}.notes"


def open_journal(path: Path, num_rows: int, *, killed: bool = False) -> CrashJournal:
    """Returns the journal of this life; its file (mode 0600) atomically replaces that of the last engine.

    Call it once this process holds the address. If the file cannot be written, the journal is lost with the
    process. killed: the last engine, or its worker, was killed by SIGKILL.
    """
    past = b""
    with contextlib.suppress(OSError):
        if path.stat().st_size <= _MOST_BYTES:
            past = path.read_bytes()
    memory = next_journal(past, num_rows, killed=killed)
    try:
        return CrashJournal(_map(path, memory))
    except OSError as error:
        log.warning(
            "no crash journal is kept (%s): a request that makes the engine die will not be found",
            error.strerror,
        )
        return CrashJournal(memory)


def _map(path: Path, content: bytearray) -> mmap.mmap:
    """Returns a shared mapping of a new file with this content. Raises OSError."""
    fresh = path.with_name(path.name + ".new")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh.unlink(missing_ok=True)
    with open(fresh, "x+b", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)  # all of it: a full disk fails here, and not when the journal is written to
        file.flush()
        memory = mmap.mmap(file.fileno(), len(content))
        os.replace(fresh, path)
    return memory
