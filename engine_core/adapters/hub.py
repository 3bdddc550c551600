"""Adapters that are named as on the Hugging Face Hub: which may be loaded, and their download."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread

from engine_core.errors import Code, Refused
from pagewire.checkpoints.paths import HubName, download_adapter, hub_cache, hub_name
from pagewire.errors import StartupError

MAX_DOWNLOADS = 4
"""At once."""
Download = Callable[[HubName, str], Path]


class HubAdapters:
    """Downloads adapters of some organisations and users, beside the steps."""

    def __init__(
        self, namespaces: tuple[str, ...] = (), cache: str = "", download: Download = download_adapter
    ) -> None:
        """namespaces: of --lora-hub. cache: of --download-dir. download: returns a folder; raises
        StartupError."""
        self._namespaces, self._cache, self._download = namespaces, cache, download
        self._running: dict[HubName, Future[Path]] = {}

    def begin(self, source: str) -> Future[Path] | None:
        """Begins to download an adapter, and returns its folder to come, or a Refused that says why there is
        none; the same for all calls that wait for it. None: the source is no name on the hub. Raises Refused
        for other organisations and users, and beside many other downloads."""
        if (name := hub_name(source)) is None:
            return None
        if name.repo.partition("/")[0] not in self._namespaces:
            raise Refused("source", "is in no namespace of --lora-hub", "ADAPTER_SOURCE_FORBIDDEN")
        self._running = {each: folder for each, folder in self._running.items() if not folder.done()}
        if (running := self._running.get(name)) is not None:
            return running
        if len(self._running) >= MAX_DOWNLOADS:
            text = f"cannot be downloaded beside {MAX_DOWNLOADS} others: try again later"
            raise Refused("source", text, "TOO_MANY_ADAPTERS", Code.RESOURCE_EXHAUSTED)
        folder = self._running[name] = Future[Path]()
        # An engine that ends does not wait for it.
        Thread(target=self._run, args=(name, folder), name="adapter download", daemon=True).start()
        return folder

    def _run(self, name: HubName, folder: Future[Path]) -> None:
        try:
            folder.set_result(self._download(name, self._cache))
        except StartupError as error:
            text = f"cannot be downloaded: {error.why}".replace(str(hub_cache(self._cache)), "the cache")
            folder.set_exception(Refused("source", text, "ADAPTER_NOT_FOUND", Code.NOT_FOUND))
        except Exception as error:  # it is answered, whatever it is
            text = f"cannot be downloaded: {type(error).__name__}"
            folder.set_exception(Refused("source", text, "ADAPTER_INVALID"))

    def holds(self, path: Path) -> bool:
        """Whether a folder without links is that of an adapter which may be downloaded."""
        repository, folder = path.parent.parent, path.parent
        names = (f"models--{each}--" for each in self._namespaces)
        return (
            bool(self._namespaces)
            and folder.name == "snapshots"
            and repository.parent == hub_cache(self._cache)
            and any(repository.name.startswith(name) for name in names)
        )
