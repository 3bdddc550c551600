"""Which folders adapters may be loaded from, and which of them have killed the engine."""

import json
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from engine_core.adapters.hub import HubAdapters
from engine_core.errors import Code, Refused
from pagewire.internal.v1.worker_pb2 import AdapterLoaded

log = logging.getLogger(__name__)

MAX_DEATHS = 2
"""Deaths of the worker in loads of one adapter, one after another, from which on it is not loaded."""


class AdapterSources:
    """The folders that --lora and --lora-folder name, as they are when an adapter is loaded: links that lead
    elsewhere are refused."""

    def __init__(
        self,
        folders: tuple[str, ...] = (),
        parent: str = "",
        deaths: Path | None = None,
        hub: HubAdapters | None = None,
        *,
        is_adopted: bool = False,
    ) -> None:
        """folders: of single adapters. parent: of the folders of adapters; "": none. deaths: file that names
        the load in progress, for the next core if the engine dies in it; None: none does. hub: what may be
        downloaded; None: nothing. is_adopted: the worker has outlived the last core, so that no load has
        killed it."""
        self.parent, self.hub = parent, hub or HubAdapters()
        self._folders, self._file = folders, deaths
        self._loading, self._deaths = "", dict[str, int]()
        if deaths is not None and deaths.exists():
            last, self._deaths = _read_deaths(deaths)
            if last and not is_adopted:
                self._deaths[last] = self._deaths.get(last, 0) + 1
            self._write()

    def check(self, source: str) -> str:
        """Returns the folder without links. Raises Refused where no adapter may be loaded from it."""
        try:
            path = Path(source).resolve()
            if os.path.islink(path):
                raise OSError("a loop of links, which Python 3.13 does not resolve")
            single = self.hub.holds(path) or any(path == Path(each).resolve() for each in self._folders)
            if not single and (not self.parent or path.parent != Path(self.parent).resolve()):
                text = "is not a folder of --lora, or directly in --lora-folder"
                raise Refused("source", text, "ADAPTER_SOURCE_FORBIDDEN")
        except (OSError, ValueError, RuntimeError) as error:  # a null byte; a loop, before 3.13
            raise Refused("source", "is not a readable path", "ADAPTER_SOURCE_FORBIDDEN") from error
        if self._deaths.get(str(path), 0) >= MAX_DEATHS:
            text = f"the worker died {MAX_DEATHS} times while it loaded this adapter"
            raise Refused("", text, "ADAPTER_QUARANTINED", Code.INTERNAL)
        return str(path)

    def begin(self, source: str) -> None:
        """Registers that a load begins."""
        self._loading = source
        self._write()

    def end(self, source: str) -> None:
        """Registers that a load has ended, by success or by an answer that says why not."""
        self._loading = ""
        self._deaths.pop(source, None)
        self._write()

    def _write(self) -> None:
        if self._file is not None:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps({"loading": self._loading, "deaths": self._deaths}))
            fresh.replace(self._file)


@dataclass(frozen=True, slots=True)
class AdapterOptions:
    """What the configuration and the worker say of adapters."""

    sources: AdapterSources = field(default_factory=AdapterSources)
    capacity: int = 0
    """Bytes of memory of the worker for adapters (--lora-memory)."""
    held: tuple[AdapterLoaded, ...] = ()
    """What an adopted worker has loaded."""


NO_ADAPTERS = AdapterOptions()
"""There is no folder to load one from."""


def _read_deaths(file: Path) -> tuple[str, dict[str, int]]:
    """Returns the load in progress of the core before this one, and how often each has killed the worker;
    nothing where they cannot be read."""
    try:
        past = json.loads(file.read_text())
        return str(past["loading"]), {str(source): int(count) for source, count in past["deaths"].items()}
    except (OSError, ValueError, AttributeError, TypeError, KeyError, RecursionError) as error:
        log.warning("%s cannot be read, so no adapter is quarantined: %s", file.name, error)
        return "", {}
