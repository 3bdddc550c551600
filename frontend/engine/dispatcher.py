"""Sends requests to engine cores: to one that is chosen, to another when that one is lost or overloaded.

What ends the work of a core on a request, and what becomes of the request:

| call       | cause                                   | the request                                     |
| ---------- | --------------------------------------- | ----------------------------------------------- |
| complete() | the core has sent all of its output     | leaves the journal                              |
| lose()     | the core is away, with all its requests | goes on at another core, or waits for one       |
| move()     | the core ends soon                      | goes on at another core with copies of blocks   |
| hand_over()| the core is for prompts, and has sent   | goes on at a core that decodes, if one serves,  |
|            | output                                  | with copies of blocks                           |
| invalid()  | its output is inconsistent              | is aborted there, and goes on like a lost one   |
| refuse()   | the core has ended it with an error     | goes to another core if this one was            |
|            |                                         | overloaded, lost it, or lacks its adapter;      |
|            |                                         | otherwise it ends with the error                |
| give_up()  | this frontend cannot process its output | is aborted there, and ends with INTERNAL        |
"""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from hashlib import blake2b
from math import inf
from random import Random

from frontend.engine.core import Core, JournalEntry, Routing, Sink
from frontend.engine.events import EngineEvents
from frontend.engine.journal import Journal
from frontend.engine.prefixes import SentPrefixes, names_of
from frontend.errors import (
    EngineDead,
    EngineNotReady,
    InternalError,
    ProtocolError,
    Quarantined,
    ServiceError,
)
from frontend.telemetry.tracing import about
from pagewire.internal.v1 import engine_pb2
from pagewire.internal.v1.engine_pb2 import CORE_ROLE_DECODE, CORE_ROLE_PREFILL
from pagewire.logs import traceback_of

log = logging.getLogger(__name__)

MAX_REFUSALS = dict.fromkeys(
    ("DEADLINE_UNREACHABLE", "MEDIA_MEMORY_FULL", "QUEUE_FULL", "WAIT_TOO_LONG"), 2.0
)
MAX_REFUSALS["ADAPTER_CHANGED"] = inf
"""Reasons to refuse a request that may not hold at another core, each with how many cores may refuse it
before its client is told. Where the files of an adapter have changed, another core may still hold it."""
ADAPTER_MARGIN = 0.25
"""Load, see Core.load, up to which a core that has an adapter is preferred to an idler one."""


class Dispatcher:
    """The way of each request to a core. Methods belong to the event loop's thread."""

    def __init__(
        self,
        cores: Callable[[], Sequence[Core]],
        journal: Journal,
        events: EngineEvents,
        random: Random,
        prefixes: SentPrefixes | None = None,
    ) -> None:
        """cores: returns those on the address list, by rank. prefixes: what cores were sent, for holders of
        new requests; None: they name none."""
        self._prefixes = prefixes
        self._cores, self._journal, self._events, self._random = cores, journal, events, random
        self._handles = itertools.count(1)  # for all cores: a handle names one attempt at one of them

    def submit(
        self,
        request: engine_pb2.AddRequest,
        sink: Sink,
        routing: Routing,
        ready_timeout: float,
        media: bytes | bytearray = b"",
    ) -> int:
        """Sends a request whose outputs go to the sink; while no core takes it, it waits for up to
        ready_timeout seconds. media: packed. Returns a ticket for release(). Raises EngineNotReady."""
        request.handle = next(self._handles)
        core = self._send(request, routing, media)
        if core is not None:
            self._journal.add(request, sink, core, routing, media)
        elif ready_timeout:
            self._journal.hold(request, sink, ready_timeout, routing, media)
        else:
            raise EngineNotReady("the engine does not take requests")
        return request.handle

    def release(self, ticket: int, *, detach: bool = False) -> None:
        """Detaches the sink and aborts what a core still computes for it; see EngineClient. Idempotent."""
        entry = self._journal.remove(ticket)
        if entry is not None and entry.core is not None:
            entry.core.abort(entry.handle, detach=detach)

    def resume(self) -> None:
        """Resends the requests that wait for a core."""
        for entry in self._journal.waiting():
            if not self._send_again(entry):
                break  # the rest follow with a core's next message

    def complete(self, entry: JournalEntry) -> None:
        """No more output will come for the request."""
        self._journal.drop(entry)

    def lose(self, core: Core) -> None:
        """A core will not answer its requests any more."""
        num_cores = max(len(self._cores()), 1)
        for entry in list(core.in_flight.values()):
            self._journal.lose(entry, EngineDead(), Quarantined(), is_dead=True, num_cores=num_cores)
        self.resume()

    def move(self, core: Core) -> None:
        """A core ends soon: its requests go on at others, if any serves, and name it as the holder of their
        blocks. Otherwise they stay for as long as it lives."""
        if not any(other.serves for other in self._cores()):
            return
        for entry in list(core.in_flight.values()):
            self._move(entry, core)

    def hand_over(self, core: Core, entries: Iterable[JournalEntry]) -> None:
        """A core that is for prompts has sent output: the requests go on at cores that decode and can copy
        their blocks. Where none serves, they stay; so do requests that use no cache."""
        for entry in entries:
            is_here = core.in_flight.get(entry.handle) is entry and not entry.request.cache_bypass
            if is_here and any(other not in entry.refused_by for other in self._decoding(core)):
                self._move(entry, core, is_handed_over=True)

    def _decoding(self, holder: Core) -> Iterator[Core]:
        for core in self._cores():
            if core.serves and core.role != CORE_ROLE_PREFILL and holder.may_send_blocks_to(core):
                yield core

    def _move(self, entry: JournalEntry, core: Core, *, is_handed_over: bool = False) -> None:
        """Sends a request of a core to another one, which copies its blocks."""
        core.abort(entry.handle)
        self._journal.take_back(entry)
        entry.holder = core.address
        if not self._send_again(entry, entry.refused_by, is_handed_over=is_handed_over):
            self._journal.lose(entry, EngineDead(), EngineDead())

    def invalid(self, core: Core, entry: JournalEntry, error: ProtocolError) -> None:
        """Aborts a request with inconsistent output, so that another attempt may succeed."""
        with about(entry.request):
            core.count_error(str(error))
        core.abort(entry.handle)
        self._journal.lose(entry, InternalError(), InternalError())

    def give_up(self, core: Core, entry: JournalEntry, error: BaseException) -> None:
        """Fails a request whose output this frontend cannot process: a bug, which another attempt would meet
        again."""
        with about(entry.request):
            log.error("the output of a request cannot be processed: %s", traceback_of(error))
        core.abort(entry.handle)
        self._journal.fail(entry, InternalError())

    def refuse(self, core: Core, entry: JournalEntry, error: ServiceError) -> None:
        """A core has ended the request with an error."""
        if error.reason == "FRONTEND_LOST":  # this frontend was too slow for it
            self._journal.lose(entry, error, error)
        elif error.reason == "REQUEST_ABORTED":  # while it was being sent to the core
            self._journal.drop(entry)
            entry.sink.abort()
        elif error.reason == "REQUEST_QUARANTINED":
            self._events.quarantined(core)
            self._journal.fail(entry, error)
        elif not self._try_elsewhere(entry, core, MAX_REFUSALS.get(error.reason, 1)):
            self._journal.fail(entry, error)

    def _try_elsewhere(self, entry: JournalEntry, core: Core, max_refusals: float) -> bool:
        """Resends a request that a core refused to another one. Returns False when there is none, or as many
        have refused it as may."""
        entry.refused_by = (*entry.refused_by, core)
        others = [other for other in self._cores() if other.serves and other not in entry.refused_by]
        if len(entry.refused_by) >= max_refusals or not others:
            return False
        self._journal.take_back(entry)
        return self._send_again(entry, entry.refused_by)

    def _send(
        self,
        request: engine_pb2.AddRequest,
        routing: Routing,
        media: bytes | bytearray,
        refused_by: Collection[object] = (),
    ) -> Core | None:
        """Sends a request to a core and returns that core; None when no core takes it now."""
        cores = [core for core in self._cores() if core.serves and core not in refused_by]
        holder = request.holder
        has_output = bool(request.delivered or request.ended_indexes)
        while cores:
            core = choose(fit(cores, routing, has_output=has_output), routing, self._random)
            names = self._name_holder(request, core, holder, has_media=bool(media))
            if core.add(request, media):
                if self._prefixes is not None:
                    self._prefixes.note(names, core.address)
                return core
            cores.remove(core)
        return None

    def _name_holder(
        self, request: engine_pb2.AddRequest, core: Core, holder: str, *, has_media: bool
    ) -> list[bytes]:
        """Writes into a request which other core has blocks of its prefix. holder: the one that is known to;
        empty: one that was sent the prefix. Returns the names of the prefixes."""
        names: list[bytes] = []
        if self._prefixes is not None and core.welcome is not None and not has_media:
            names = names_of(request, core.welcome.block_size)
            others = [other.address for other in self._cores() if other.may_send_blocks_to(core)]
            holder = holder or self._prefixes.find(names, core.address, others)
        request.holder = holder if holder != core.address else ""
        return names

    def _send_again(
        self, entry: JournalEntry, refused_by: Collection[object] = (), *, is_handed_over: bool = False
    ) -> bool:
        request = self._journal.again(entry, next(self._handles))
        core = self._send(request, entry.routing, entry.media, refused_by)
        if core is not None:
            self._journal.resent(entry, core, request.handle, is_handed_over=is_handed_over)
            if request.again and not is_handed_over:
                self._events.resumed(core)
        return core is not None


def fit(cores: Sequence[Core], routing: Routing, *, has_output: bool) -> Sequence[Core]:
    """Returns which of the cores (at least one) are for such a request: for a new one those that compute
    prompts, or the one that its client names; for one that has output those that decode. All, where none
    is."""
    if not has_output and (named := [core for core in cores if core.rank == routing.rank]):
        return named
    unfit = CORE_ROLE_PREFILL if has_output else CORE_ROLE_DECODE
    return [core for core in cores if core.role != unfit] or cores


def choose(cores: Sequence[Core], routing: Routing, random: Random) -> Core:
    """Returns one of the cores (at least one).

    By rank, when the client names one that serves. By session: the same session always goes to the same core
    and its prefix cache, from every frontend and after every restart; while that core is away another one
    takes over, and no other session moves. By adapter: among the cores that have it loaded, or among all
    while none has, in the same order from every frontend, so that few cores load each; the first that is not
    busier than the idlest core by ADAPTER_MARGIN. Otherwise the less loaded of two randomly drawn cores: load
    figures are up to a second old, and if every frontend chose the core that looked emptiest, it would become
    the fullest.
    """
    if len(cores) == 1:
        return cores[0]
    if routing.rank is not None:
        for core in cores:
            if core.rank == routing.rank:
                return core
    if routing.session_id:
        return max(cores, key=lambda core: _score(core.address, routing.session_id))
    if routing.adapter:
        most = min(core.load for core in cores) + ADAPTER_MARGIN
        homes = [core for core in cores if routing.adapter in core.held_adapters] or cores
        name = routing.adapter.hex()
        for core in sorted(homes, key=lambda core: _score(core.address, name), reverse=True):
            if core.load <= most:
                return core
    return min(random.sample(cores, 2), key=lambda core: core.load)


def _score(address: str, session_id: str) -> bytes:
    """Rendezvous hash: the core with the highest score wins, so a core that comes or goes moves only its own
    sessions."""
    return blake2b(session_id.encode(), key=blake2b(address.encode()).digest(), digest_size=8).digest()
