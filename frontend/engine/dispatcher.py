"""Sends requests to engine cores: to one that is chosen, to another when that one is lost or overloaded.

A request whose core is lost continues on another core at once; when there is none, it waits for the next one.
"""

import itertools
from collections.abc import Callable, Collection
from random import Random

from frontend.engine.connection import EngineConnection
from frontend.engine.events import EngineEvents
from frontend.engine.journal import Journal, JournalEntry, Sink
from frontend.engine.routing import Routing, choose
from frontend.errors import EngineNotReady
from pagewire.internal.v1 import engine_pb2

OVERLOADED = frozenset({"DEADLINE_UNREACHABLE", "QUEUE_FULL", "WAIT_TOO_LONG"})
"""Reasons to refuse a request that may not hold at another core."""
MAX_REFUSALS = 2
"""Cores that may refuse a request for such a reason before its client is told."""


class Dispatcher:
    """The way of each request to a core. Methods belong to the event loop's thread."""

    def __init__(
        self,
        cores: Callable[[], list[EngineConnection]],
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

    def try_elsewhere(self, entry: JournalEntry, core: EngineConnection) -> bool:
        """Resends a request that an overloaded core refused to another one. Returns False when
        there is none."""
        entry.refused_by = (*entry.refused_by, core)
        others = [other for other in self._cores() if other.serves and other not in entry.refused_by]
        if len(entry.refused_by) >= MAX_REFUSALS or not others:
            return False
        self._journal.take_back(entry)
        return self._send_again(entry, entry.refused_by)

    def _send(
        self, request: engine_pb2.AddRequest, routing: Routing, refused_by: Collection[object] = ()
    ) -> EngineConnection | None:
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
