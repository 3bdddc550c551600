"""The requests of a frontend that are in flight, by the engine's ids.

Ids are unique; a client's request may consist of several engine requests; all can be ended from here.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from frontend.auth.caller import Caller, scope
from frontend.call.turns import TenantTurns
from frontend.engine.client import EngineClient
from frontend.engine.core_list import CoreQuestions
from frontend.errors import ContinuedElsewhere, RequestExists, ServiceError
from frontend.streams.stream import Stream
from frontend.telemetry.timings import RequestTimings
from pagewire.internal.v1 import engine_pb2


@dataclass(slots=True)
class RegisteredRequest:
    """A request of this frontend, from its arrival on."""

    stream: Stream | None = None
    ticket: int | None = None
    """The engine client's ticket; None: it has not been sent yet."""
    aborted: bool = False
    tenant: str = ""
    priority: int = 0
    timings: RequestTimings | None = None
    """None: of a group."""
    failure: ServiceError | None = None
    """The error that ended it before it had a stream."""
    members: tuple[str, ...] = ()
    """Engine ids of the requests that make up a group; empty for a single request."""
    begun: bool = False
    """Of a group: a core has had one of its requests."""
    content: bytes = b""
    """Digest of its content; empty: no other call can take it over."""
    over: bool = False
    """Its call has ended."""
    former: "RegisteredRequest | None" = None
    """An earlier call of the same request, which may not have heard yet that this one has it."""

    def last_call(self) -> "RegisteredRequest | None":
        """Returns the last call of the request that has not ended, this one included."""
        call: RegisteredRequest | None = self
        while call is not None and call.over:
            call = call.former
        return call


class RequestRegistry:
    """All requests of this frontend, including those that have not been sent yet."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._entries: dict[str, RegisteredRequest] = {}
        self._groups: dict[str, tuple[str, RegisteredRequest]] = {}  # by member: the group's id, and itself
        self._arriving: dict[str, dict[int, RegisteredRequest]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_requests(self) -> int:
        """Requests as clients count them: a group is one."""
        members = sum(member in self._entries for entry in self._entries.values() for member in entry.members)
        return len(self._entries) - members

    def find(self, engine_id: str) -> RegisteredRequest | None:
        """Returns the request with this id."""
        return self._entries.get(engine_id)

    def items(self) -> list[tuple[str, RegisteredRequest]]:
        """Returns all requests with their engine ids, groups left out, in order of arrival."""
        return [(name, entry) for name, entry in self._entries.items() if not entry.members]

    @contextmanager
    def arriving(self, engine_id: str) -> Iterator[RegisteredRequest]:
        """Lets an Abort find a call that is not checked yet, and will reserve this id."""
        entry, calls = RegisteredRequest(), self._arriving.setdefault(engine_id, {})
        calls[id(entry)] = entry
        try:
            yield entry
        finally:
            del calls[id(entry)]
            if not calls:
                del self._arriving[engine_id]

    @contextmanager
    def reserve(self, engine_id: str, content: bytes = b"") -> Iterator[RegisteredRequest]:
        """Reserves a request's id within this frontend. (The core does so across frontends.) A call with the
        content of one in flight has the id from here on. Raises RequestExists."""
        former = self._entries.get(engine_id)
        if former is not None:
            if not content or content != former.content:
                raise RequestExists
            former.former = former.former and former.former.last_call()
            if former.ticket is None:  # the core, which tells the others, does not know it
                former.failure = ContinuedElsewhere()
        _, member = self._groups.get(engine_id, ("", RegisteredRequest()))
        entry = RegisteredRequest(content=content, former=former, aborted=member.aborted)
        self._entries[engine_id] = entry
        try:
            yield entry
        finally:
            entry.over = True
            if self._entries[engine_id] is entry:
                last = entry.last_call()
                if last is None:
                    del self._entries[engine_id]
                else:
                    self._entries[engine_id] = last

    @contextmanager
    def group(
        self, request_id: str, caller: Caller, size: int, aborted: bool = False
    ) -> Iterator[tuple[str, ...]]:
        """Reserves an id for requests that are one to their client, and yields the ids of its members. Raises
        RequestExists."""
        group_id, timings = caller.scope(request_id), RequestTimings()
        with self.reserve(group_id) as entry:
            members = tuple(f"{request_id}#{place}" for place in range(size))
            entry.members = tuple(map(caller.scope, members))
            aborted |= entry.aborted  # as a member of another group
            for member in entry.members:
                self._groups[member] = group_id, RegisteredRequest(timings=timings, aborted=aborted)
            try:
                yield members
            finally:
                for member in entry.members:
                    del self._groups[member]

    def put_age(self, message: engine_pb2.AddRequest, timings: RequestTimings) -> None:
        """Writes the age of a request, or of its outermost group, into the message for the core."""
        name = message.request_id
        while name in self._groups:
            name, member = self._groups[name]
            timings, message.group = member.timings or timings, name
        message.age_us = round(1e6 * timings.seconds())

    def group_of(self, engine_id: str) -> RegisteredRequest | None:
        """Returns the outermost group that a request belongs to; None: it is one by itself."""
        name = engine_id
        while name in self._groups:
            name, _ = self._groups[name]
        return None if name == engine_id else self._entries.get(name)

    def members(self, engine_id: str) -> tuple[str, ...]:
        """Returns the engine ids of the requests that a client's id stands for."""
        entry = self._entries.get(engine_id)
        if entry is None or not entry.members:
            return (engine_id,)
        return tuple(found for member in entry.members for found in self.members(member))

    def end_all(self, error: ServiceError) -> None:
        """Ends all requests with an error; their clients may continue them at another frontend."""
        for entry in self._entries.values():
            if entry.stream is None or entry.ticket is None:
                entry.failure = error
            elif not entry.stream.ended:
                self._engine.release(entry.ticket, detach=True)
                entry.stream.fail(error)

    def abort(self, engine_ids: Iterable[str]) -> None:
        """Aborts requests of this frontend, in whatever state they are."""
        for engine_id in engine_ids:
            self.abort_early(engine_id)
            if (entry := self._entries.get(engine_id)) is not None:
                self._abort(entry)

    def abort_unsent(self, engine_ids: Iterable[str]) -> set[str]:
        """Aborts those requests that no core has at the moment; returns their ids."""
        found = set()
        for engine_id in engine_ids:
            entry = self._entries.get(engine_id)
            if entry is not None and (entry.ticket is None or self._engine.waits(entry.ticket)):
                self._abort(entry)
                found.add(engine_id)
        return found

    def abort_early(self, engine_id: str) -> bool:
        """Aborts calls that have not reserved this id yet. Returns whether there are any."""
        calls = [*self._arriving.get(engine_id, {}).values()]
        calls += [self._groups[engine_id][1]] if engine_id in self._groups else []
        for call in calls:
            call.aborted = True
        return bool(calls)

    def _abort(self, entry: RegisteredRequest) -> None:
        if entry.stream is None or entry.ticket is None:
            entry.aborted = True
        elif not entry.stream.ended:
            self._engine.release(entry.ticket)
            entry.stream.abort()


class Aborts:
    """Ends requests by their ids, wherever they are: in this frontend, at a core, or on their way to one.

    A core answers between two steps and looks up every id in its step loop, so a tenant has one call at the
    cores at a time: however many it sends, a step waits for the ids of one. Without authentication tenants
    are not told apart, and calls do not wait for one another. Belongs to the event loop's thread.
    """

    def __init__(self, registry: RequestRegistry, cores: CoreQuestions) -> None:
        self._registry = registry
        self._cores = cores
        self._turns = TenantTurns(None, share=lambda tenant: 1)

    async def abort(self, tenant: str | None, request_ids: Sequence[str]) -> list[str]:
        """Ends a tenant's requests; returns the ids that were in flight. Raises EngineNotReady."""
        members = {name: self._registry.members(scope(tenant, name)) for name in request_ids}
        wanted = [member for parts in members.values() for member in parts]
        early = {member for member in wanted if self._registry.abort_early(member)}
        unsent = self._registry.abort_unsent(wanted)
        others = [member for member in wanted if member not in unsent]
        known: list[str] = []
        if others:
            async with self._turns.turn(tenant):
                known = await self._cores.abort_by_ids(others)
        aborted = early.union(unsent, known)
        return [name for name in request_ids if not aborted.isdisjoint(members[name])]
