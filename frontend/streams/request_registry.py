"""The requests of a frontend that are in flight, by the ids that the engine has for them.

Each id is there once; some requests are one to their client; and all can be ended from here.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from frontend.auth.caller import Caller
from frontend.engine.client import EngineClient
from frontend.errors import RequestExists, ServiceError
from frontend.streams.stream import Stream
from frontend.telemetry.timings import RequestTimings
from pagewire.internal.v1 import engine_pb2


@dataclass(slots=True)
class RegisteredRequest:
    """A request of this frontend, from its arrival on."""

    stream: Stream | None = None
    ticket: int | None = None
    """The engine client's; None: it has not been sent yet."""
    aborted: bool = False
    failure: ServiceError | None = None
    """What ended it before it had a stream."""
    members: tuple[str, ...] = ()
    """Ids of the requests that it consists of; none: it is one."""


class RequestRegistry:
    """All of them: those that nobody has sent yet, too."""

    def __init__(self, engine: EngineClient) -> None:
        self._engine = engine
        self._entries: dict[str, RegisteredRequest] = {}
        self._groups: dict[str, tuple[str, RequestTimings]] = {}  # by member: its group, and that one's times

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_requests(self) -> int:
        """As clients count them."""
        members = sum(member in self._entries for entry in self._entries.values() for member in entry.members)
        return len(self._entries) - members

    @contextmanager
    def reserve(self, engine_id: str) -> Iterator[RegisteredRequest]:
        """Holds a request's id, so that no other request of this frontend can have it. (The core sees
        to those of other frontends.) Raises RequestExists."""
        if engine_id in self._entries:
            raise RequestExists
        entry = self._entries[engine_id] = RegisteredRequest()
        try:
            yield entry
        finally:
            del self._entries[engine_id]

    @contextmanager
    def group(self, request_id: str, caller: Caller, size: int) -> Iterator[tuple[str, ...]]:
        """Ids for requests that are one to their client. Raises RequestExists."""
        group_id, timings = caller.scope(request_id), RequestTimings()
        with self.reserve(group_id) as entry:
            members = tuple(f"{request_id}#{place}" for place in range(size))
            entry.members = tuple(map(caller.scope, members))
            self._groups.update(dict.fromkeys(entry.members, (group_id, timings)))
            try:
                yield members
            finally:
                for member in entry.members:
                    del self._groups[member]

    def put_age(self, message: engine_pb2.AddRequest, timings: RequestTimings) -> None:
        """Tells the core how long a request has been here, or the group to which it belongs."""
        message.group, timings = self._groups.get(message.request_id, ("", timings))
        message.age_us = round(1e6 * timings.seconds())

    def members(self, engine_id: str) -> tuple[str, ...]:
        """The requests that a client means by an id, by the engine's ids."""
        entry = self._entries.get(engine_id)
        return entry.members if entry is not None and entry.members else (engine_id,)

    def end_all(self, error: ServiceError) -> None:
        """Ends what is in flight; the core hears of it."""
        for entry in self._entries.values():
            if entry.stream is None or entry.ticket is None:
                entry.failure = error
            elif not entry.stream.ended:
                self._engine.release(entry.ticket)
                entry.stream.fail(error)

    def abort(self, engine_ids: Iterable[str]) -> None:
        """Ends requests of this frontend, wherever they are; the core hears of it."""
        for engine_id in engine_ids:
            entry = self._entries.get(engine_id)
            if entry is not None:
                self._abort(entry)

    def abort_unsent(self, engine_ids: Iterable[str]) -> set[str]:
        """Ends requests that no core has: not yet, or not any more; returns which those are."""
        found = set()
        for engine_id in engine_ids:
            entry = self._entries.get(engine_id)
            if entry is not None and (entry.ticket is None or self._engine.waits(entry.ticket)):
                self._abort(entry)
                found.add(engine_id)
        return found

    def _abort(self, entry: RegisteredRequest) -> None:
        if entry.stream is None or entry.ticket is None:
            entry.aborted = True
        elif not entry.stream.ended:
            self._engine.release(entry.ticket)
            entry.stream.abort()
