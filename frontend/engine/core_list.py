"""The engine cores: their addresses, a list that is polled and may change while the frontend runs, the
connections to them, ordered by rank, and questions to all of them at once.
"""

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from frontend.engine.connection import EngineConnection
from frontend.engine.core import ANSWER, Core, Routing
from frontend.errors import EngineNotReady, ServiceError
from pagewire.errors import StartupError
from pagewire.host.addresses import is_address
from pagewire.host.file_watch import Signature, read_small, signature_of
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.transport import is_tcp
from pagewire.v1 import admin_pb2

log = logging.getLogger(__name__)

FILE_MARK = "@"
"""Prefix of a file name instead of an address: one address per line; empty lines and lines that begin with #
are ignored."""
COMMAND_S = 3.0
"""Seconds until a frontend that does not answer a command is given up: it answers from its event loop."""
FIND_S = 0.5
"""Seconds until a core that does not say whether it has a request is taken not to have it."""


LOOK_UP_S = 5.0
"""Seconds between two lookups of a name."""


class GivenAddresses:
    """Addresses from the command line, files of addresses, which are read again when they change, and names
    of hosts."""

    def __init__(self, given: Sequence[str]) -> None:
        """Raises StartupError for a tcp address without a port."""
        self._sources: list[Iterable[str]] = [_source(one) for one in given]

    def look(self) -> list[str]:
        """Returns all current addresses, each once. Raises StartupError when they could never be read."""
        return list(dict.fromkeys(address for source in self._sources for address in source))


def _source(given: str) -> Iterable[str]:
    if given.startswith(FILE_MARK):
        return _File(Path(given.removeprefix(FILE_MARK)))
    if not is_tcp(given):
        return [given]
    host, _, port = given.removeprefix("tcp://").rpartition(":")
    return [given] if is_address(host.strip("[]")) or host == "localhost" else _Name(host, port)


class _Name:
    """A name in DNS, such as that of a headless Service: each of its IPv4 addresses is a core. It is looked
    up every few seconds, in a thread. While it has no address, the last ones remain valid."""

    def __init__(self, host: str, port: str) -> None:
        self._host, self._port = host, port
        self._addresses: list[str] = []
        self._lookup: threading.Thread | None = None
        self._next = 0.0
        self._why = ""  # the last lookup has failed

    def __iter__(self) -> Iterator[str]:
        if self._lookup is not None and not self._lookup.is_alive():
            self._lookup = None
        if self._lookup is None and time.monotonic() >= self._next:
            self._next = time.monotonic() + LOOK_UP_S
            self._lookup = threading.Thread(target=self._look_up, name="look-up", daemon=True)
            self._lookup.start()
        return iter(self._addresses)

    def _look_up(self) -> None:
        try:
            found = socket.getaddrinfo(self._host, None, socket.AF_INET, socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            if why != self._why:
                stay = ", the last ones stay valid" if self._addresses else ""
                log.warning("--engine %s has no addresses%s: %s", self._host, stay, why)
            self._why = why
            return
        self._why = ""
        self._addresses = [f"tcp://{host}:{self._port}" for host in sorted({one[4][0] for one in found})]


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


class CoreQuestions:
    """The questions, and what is made of the answers."""

    def __init__(self, cores: CoreList, require: Callable[[], object]) -> None:
        """require: raises EngineNotReady when no core serves."""
        self._cores = cores
        self._require = require

    async def ask(self, call: engine_pb2.Utility) -> list[tuple[Core, engine_pb2.UtilityResult]]:
        """Returns the answers of all cores in use. Raises EngineNotReady."""
        self._require()
        return await ask_all(self._cores.all(), call)

    async def abort_by_ids(self, request_ids: Sequence[str]) -> list[str]:
        """Aborts requests of any frontend at every core; returns the ids that were in flight."""
        call = engine_pb2.Utility(abort_by_ids=engine_pb2.AbortByIds(request_ids=request_ids))
        answers = await self.ask(call)
        known = {name for _, result in answers for name in result.aborted.request_ids}
        return [name for name in request_ids if name in known]

    async def loads(self) -> list[admin_pb2.RankLoad]:
        """Returns the current load of each connected core, by rank."""
        self._require()
        call = engine_pb2.Utility(get_load=engine_pb2.GetLoad())
        loads = []
        for core, result in await ask_all(self._cores.cores, call):
            load = result.load.load
            load.rank = core.rank
            loads.append(load)
        return loads

    async def reset_cache(self) -> None:
        """Empties the prefix cache of each core."""
        self._require()
        call = engine_pb2.Utility(reset_cache=engine_pb2.ResetCache())
        await ask_all(self._cores.cores, call, all_must_answer=True)

    async def of_all(
        self, call: engine_pb2.Utility, seconds: float | None = ANSWER
    ) -> list[tuple[Core, engine_pb2.UtilityResult]]:
        """Returns the answers of all cores that serve, each of which must answer. Raises EngineNotReady."""
        self._require()
        return await ask_all(self._cores.cores, call, all_must_answer=True, seconds=seconds)

    async def where(self, request_id: str, routing: Routing) -> Routing:
        """Returns the routing to the core that has a request in flight; where none has, the given one.

        One core is not asked: it finds out by itself. Of several, each is asked before a request is sent.
        Without other hints, the id stands for a session: calls of one request that begin in the same moment,
        or are sent again when their core dies, meet at the same core.
        """
        cores = [core for core in self._cores.cores if core.serves]
        routing = replace(routing, session_id=routing.session_id or request_id)
        if len(cores) < 2:
            return routing
        asked = [asyncio.create_task(_has(core, request_id)) for core in cores]
        try:
            for answer in asyncio.as_completed(asked, timeout=FIND_S):
                core = await answer
                if core is not None:
                    return replace(routing, rank=core.rank)
        except TimeoutError:
            pass
        finally:
            for task in asked:
                task.cancel()
        return routing

    async def frontends(self) -> list[tuple[admin_pb2.FrontendStatus, Core]]:
        """Returns the frontends that any core is connected to, each with one such core. Raises
        EngineNotReady."""
        call = engine_pb2.Utility(list_frontends=engine_pb2.ListFrontends())
        found: dict[str, tuple[admin_pb2.FrontendStatus, Core]] = {}
        for core, result in await self.ask(call):
            for status in result.frontends.frontends:
                found.setdefault(status.instance_id, (status, core))
        return list(found.values())

    async def command(
        self, core: Core, command: engine_pb2.FrontendCommand
    ) -> admin_pb2.FrontendStatus | None:
        """Returns the status of a frontend after a command, which a core passes on; None: it does not
        answer."""
        call = engine_pb2.Utility(command_frontend=command)
        try:
            result = await asyncio.wait_for(core.utility_calls.ask(call), COMMAND_S)
        except (EngineNotReady, TimeoutError):
            return None
        return result.frontend_status if result.HasField("frontend_status") else None


async def _has(core: Core, request_id: str) -> Core | None:
    """Returns the core if it has a request in flight."""
    call = engine_pb2.Utility(find_request=engine_pb2.FindRequest(request_id=request_id))
    try:
        result = await core.utility_calls.ask(call)
    except EngineNotReady:
        return None
    return core if result.found.in_flight else None


async def ask_all(
    cores: Sequence[Core],
    call: engine_pb2.Utility,
    *,
    all_must_answer: bool = False,
    seconds: float | None = ANSWER,
) -> list[tuple[Core, engine_pb2.UtilityResult]]:
    """Returns the replies of all connected cores in use. Raises EngineNotReady when there are none, or when
    one is missing and all_must_answer."""
    asked = [core for core in cores if core.epoch and not core.differs]
    answers = await asyncio.gather(
        *(core.utility_calls.ask(call, seconds) for core in asked), return_exceptions=True
    )
    found = []
    failed: BaseException = EngineNotReady("the engine went away")
    for core, answer in zip(asked, answers, strict=True):
        if isinstance(answer, engine_pb2.UtilityResult):
            found.append((core, answer))
            continue
        failed = answer
        if not isinstance(answer, ServiceError) or (all_must_answer and core.epoch):
            raise answer
    if not found:
        raise failed
    return found
