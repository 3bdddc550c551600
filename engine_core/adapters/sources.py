"""Which folders adapters may be loaded from, and which of them have killed the engine."""

import json
import logging
import os
from pathlib import Path

from engine_core.errors import Code, Refused

log = logging.getLogger(__name__)

MAX_DEATHS = 2
"""Deaths of the engine in loads of one adapter, one after another, from which on it is not loaded."""


class AdapterSources:
    """The folders that --lora and --lora-folder name, as they are when an adapter is loaded: links that lead
    elsewhere are refused."""

    def __init__(self, folders: tuple[str, ...] = (), parent: str = "", deaths: Path | None = None) -> None:
        """folders: of single adapters. parent: of the folders of adapters; "": none. deaths: file in which
        loads in progress are counted, for the next core if the engine dies in one; None: they are not."""
        self.parent = parent
        self._folders, self._deaths = folders, deaths
        self._counts: dict[str, int] = {}
        if deaths is not None and deaths.exists():
            self._counts = _read_counts(deaths)

    def check(self, source: str) -> str:
        """Returns the folder without links. Raises Refused where no adapter may be loaded from it."""
        try:
            path = Path(source).resolve()
            if os.path.islink(path):
                raise OSError("a loop of links, which Python 3.13 does not resolve")
            single = any(path == Path(folder).resolve() for folder in self._folders)
            if not single and (not self.parent or path.parent != Path(self.parent).resolve()):
                text = "is not a folder of --lora, or directly in --lora-folder"
                raise Refused("source", text, "ADAPTER_SOURCE_FORBIDDEN")
        except (OSError, ValueError, RuntimeError) as error:  # a null byte; a loop, before 3.13
            raise Refused("source", "is not a readable path", "ADAPTER_SOURCE_FORBIDDEN") from error
        if self._counts.get(str(path), 0) >= MAX_DEATHS:
            text = f"the engine died {MAX_DEATHS} times while it loaded this adapter"
            raise Refused("", text, "ADAPTER_QUARANTINED", Code.INTERNAL)
        return str(path)

    def begin(self, source: str) -> None:
        """Registers that a load begins."""
        self._counts[source] = self._counts.get(source, 0) + 1
        self._write()

    def end(self, source: str) -> None:
        """Registers that a load has ended, by success or by an answer that says why not."""
        self._counts.pop(source, None)
        self._write()

    def _write(self) -> None:
        if self._deaths is not None:
            fresh = self._deaths.with_suffix(".new")
            fresh.write_text(json.dumps(self._counts))
            fresh.replace(self._deaths)


def _read_counts(file: Path) -> dict[str, int]:
    """Returns the counts of the core before this one; none where they cannot be read."""
    try:
        counts = json.loads(file.read_text())
        return {str(source): int(count) for source, count in counts.items()}
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        log.warning("%s cannot be read, so no adapter is quarantined: %s", file.name, error)
        return {}
