"""The connections to the engine cores on the address list, and to those that were removed from it."""

import logging
from collections.abc import Callable

from frontend.engine.connection import EngineConnection
from frontend.engine.discovery import AddressSource
from pagewire.errors import StartupError

log = logging.getLogger(__name__)


class CoreList:
    """One connection per address. A removed core stays until its requests have ended; it gets no new ones."""

    def __init__(self, addresses: AddressSource, connect: Callable[[str], EngineConnection]) -> None:
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
