"""Sends requests to engine cores: to one that is chosen, to another when that one is lost or overloaded.

What ends the work of a core on a request, and what becomes of the request:

| call       | cause                                   | the request                                     |
| ---------- | --------------------------------------- | ----------------------------------------------- |
| complete() | the core has sent all of its output     | leaves the journal                              |
| lose()     | the core is away, with all its requests | goes on at another core, or waits for one       |
| invalid()  | its output is inconsistent              | is aborted there, and goes on like a lost one   |
| refuse()   | the core has ended it with an error     | goes to another core if this one was            |
|            |                                         | overloaded, lost it, or lacks its adapter;      |
|            |                                         | otherwise it ends with the error                |
| give_up()  | this frontend cannot process its output | is aborted there, and ends with INTERNAL        |
"""

import itertools
import logging
from collections.abc import Callable, Collection, Sequence
from hashlib import blake2b
from math import inf
from random import Random

from frontend.engine.core import Core, JournalEntry, Routing, Sink
from frontend.engine.events import EngineEvents
from frontend.engine.journal import Journal
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
from pagewire.logs import traceback_of

log = logging.getLogger(__name__)

MAX_REFUSALS = {"DEADLINE_UNREACHABLE": 2, "QUEUE_FULL": 2, "WAIT_TOO_LONG": 2, "ADAPTER_CHANGED": inf}
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
    ) -> None:
        """cores: returns those on the address list, by rank."""
        self._cores, self._journal, self._events, self._random = cores, journal, events, random
        self._handles = itertools.count(1)  # for all cores: a handle names one attempt at one of them

    def submit(
        self, request: engine_pb2.AddRequest, sink: Sink, routing: Routing, ready_timeout: float
    ) -> int:
        """Sends a request whose outputs go to the sink; while no core takes it, it waits for up to
        ready_timeout seconds. Returns a ticket for release(). Raises EngineNotReady."""
        request.handle = next(self._handles)
        core = self._send(request, routing)
        if core is not None:
            self._journal.add(request, sink, core, routing)
        elif ready_timeout:
            self._journal.hold(request, sink, ready_timeout, routing)
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
        self, request: engine_pb2.AddRequest, routing: Routing, refused_by: Collection[object] = ()
    ) -> Core | None:
        """Sends a request to a core and returns that core; None when no core takes it now."""
        cores = [core for core in self._cores() if core.serves and core not in refused_by]
        while cores:
            core = choose(cores, routing, self._random)
            if core.add(request):
                return core
            cores.remove(core)
        return None

    def _send_again(self, entry: JournalEntry, refused_by: Collection[object] = ()) -> bool:
        request = self._journal.again(entry, next(self._handles))
        core = self._send(request, entry.routing, refused_by)
        if core is not None:
            self._journal.resent(entry, core, request.handle)
            if request.again:
                self._events.resumed(core)
        return core is not None


def choose(cores: Sequence[Core], routing: Routing, random: Random) -> Core:
    """Returns one of the cores (at least one).

    By rank, when the client names one that serves. By session: the same session always goes to the same core
    and its prefix cache, from every frontend and after every restart; while that core is away another one
    takes over, and no other session moves. By adapter in the same way, so that few cores load each, while
    that core is not busier than the idlest by ADAPTER_MARGIN. Otherwise the less loaded of two randomly drawn
    cores: load figures are up to a second old, and if every frontend chose the core that looked emptiest, it
    would become the fullest.
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
        home = max(cores, key=lambda core: _score(core.address, routing.adapter.hex()))
        if home.load <= min(core.load for core in cores) + ADAPTER_MARGIN:
            return home
    return min(random.sample(cores, 2), key=lambda core: core.load)


def _score(address: str, session_id: str) -> bytes:
    """Rendezvous hash: the core with the highest score wins, so a core that comes or goes moves only its own
    sessions."""
    return blake2b(session_id.encode(), key=blake2b(address.encode()).digest(), digest_size=8).digest()
