"""The last deaths of engine cores, and what became of their requests, for operators."""

import time
from collections import deque

from frontend.engine.core import Core
from pagewire.v1 import inspection_pb2 as pb

MAX_EVENTS = 100
_ONE_EVENT_NS = 1_000_000_000
"""Resumptions at one core that follow one another within this time are one event."""


class EngineEvents:
    """A log of bounded length."""

    def __init__(self) -> None:
        self._events: deque[pb.EngineEvent] = deque(maxlen=MAX_EVENTS)

    def latest(self) -> list[pb.EngineEvent]:
        """Returns the events, the latest first."""
        return list(reversed(self._events))

    def serves(self, core: Core) -> None:
        """Notes that a core begins to serve; one that presents itself twice does not begin again."""
        lives = (pb.ENGINE_EVENT_KIND_SERVES, pb.ENGINE_EVENT_KIND_LOST)
        earlier = (each for each in reversed(self._events) if each.rank == core.rank and each.kind in lives)
        last = next(earlier, None)
        if last is None or last.kind != pb.ENGINE_EVENT_KIND_SERVES:
            self._add(pb.ENGINE_EVENT_KIND_SERVES, core, 0)

    def lost(self, core: Core) -> None:
        """Notes that a core died or fell silent, with the requests that it has in flight."""
        self._add(pb.ENGINE_EVENT_KIND_LOST, core, core.num_in_flight)

    def resumed(self, core: Core) -> None:
        """Notes that a request which another core had lost was sent to a core."""
        last = self._events[-1] if self._events else None
        is_same = last is not None and last.kind == pb.ENGINE_EVENT_KIND_RESUMED and last.rank == core.rank
        if last is not None and is_same and time.time_ns() - last.time.ToNanoseconds() < _ONE_EVENT_NS:
            last.requests += 1
        else:
            self._add(pb.ENGINE_EVENT_KIND_RESUMED, core, 1)

    def quarantined(self, core: Core) -> None:
        """Notes that a request was ended because the engine dies whenever it runs."""
        self._add(pb.ENGINE_EVENT_KIND_QUARANTINED, core, 1)

    def _add(self, kind: pb.EngineEventKind, core: Core, num_requests: int) -> None:
        event = pb.EngineEvent(kind=kind, rank=core.rank, requests=num_requests)
        if core.welcome is not None:
            event.instance_id = core.welcome.instance_id
        event.time.FromNanoseconds(time.time_ns())
        self._events.append(event)
