"""The engine cores: their addresses, a list that may change while the frontend runs, and the connections to
them, ordered by rank. The list is polled."""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from frontend.engine.connection import EngineConnection
from pagewire.errors import StartupError
from pagewire.host.file_watch import Signature, read_small, signature_of

log = logging.getLogger(__name__)

FILE_MARK = "@"
"""Prefix of a file name instead of an address: one address per line; empty lines and lines that begin with #
are ignored."""


class GivenAddresses:
    """Addresses from the command line, and files of addresses, which are read again when they change."""

    def __init__(self, given: Sequence[str]) -> None:
        self._sources: list[Iterable[str]] = [
            _File(Path(one.removeprefix(FILE_MARK))) if one.startswith(FILE_MARK) else [one] for one in given
        ]

    def look(self) -> list[str]:
        """Returns all current addresses, each once. Raises StartupError when they could never be read."""
        return list(dict.fromkeys(address for source in self._sources for address in source))


class _File:
    """One file. When it cannot be read any more, its last addresses remain valid."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: Signature | None = None
        self._addresses: list[str] = []
        self._is_lost = False

    def __iter__(self) -> Iterator[str]:
        try:
            version = signature_of([self._path])
            if version != self._version or self._is_lost:
                self._addresses, self._version = _parse(read_small(self._path).decode()), version
            self._is_lost = False
        except (OSError, ValueError) as error:
            if self._version is None:
                why = f"--engine @{self._path}: {getattr(error, 'strerror', None) or error}"
                raise StartupError("cannot read the addresses of the engine cores", why) from error
            if not self._is_lost:
                log.warning(
                    "cannot read the addresses of the engine cores, the last ones stay valid: %s", error
                )
            self._is_lost = True
        return iter(self._addresses)


def _parse(text: str) -> list[str]:
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


class CoreList:
    """One connection per address. A removed core stays until its requests have ended; it gets no new ones."""

    def __init__(self, addresses: GivenAddresses, connect: Callable[[str], EngineConnection]) -> None:
        """connect: makes and opens a connection; raises StartupError."""
        self.cores: list[EngineConnection] = []
        """By rank."""
        self.leaving: list[EngineConnection] = []
        """Removed from the list, but still with requests in flight."""
        self._addresses = addresses
        self._connect = connect
        self._known: list[str] = []

    def start(self) -> None:
        """Connects to all cores on the list. Raises StartupError."""
        self._known = self._addresses.look()
        self.cores = [self._connect(address) for address in self._known]
        self._number()

    def all(self) -> list[EngineConnection]:
        """Returns the cores on the list, then those that leave."""
        return self.cores + self.leaving

    def look(self) -> bool:
        """Reads the list again, and connects to added cores. Returns whether it has changed."""
        addresses = self._addresses.look()
        if addresses == self._known:
            return False
        self._known = addresses
        known = {core.address: core for core in self.all()}
        cores = []
        for address in addresses:
            try:
                cores.append(known[address] if address in known else self._connect(address))
            except StartupError as error:
                log.error("an engine is skipped: %s", error)
        self.leaving = [core for core in known.values() if core not in cores]
        self.cores = cores
        self._number()
        return True

    def close_idle(self) -> None:
        """Disconnects from removed cores whose requests have ended."""
        for core in [core for core in self.leaving if not core.in_flight]:
            self.leaving.remove(core)
            core.close()

    def _number(self) -> None:
        for rank, core in enumerate(self.cores):
            core.rank, core.leaving = rank, False
        for core in self.leaving:
            core.leaving = True
