"""The journal: requests in flight, with all that it takes to send them again.

A stream holds every token that it was given, the request is kept as it was first sent, and a token is
a function of prompt, parameters, seed and position. So when the core that had a request is gone, another
one can go on with it: the tokens so far travel as delivered output, and the next one follows them.

         add()              lose()                 resent()
    ──────────> in flight ─────────> waiting ─────────────────> in flight
                    │                   │  too long, or too often without a new token
                    └─> remove()        └─> the sink fails
"""

import asyncio
import time
from array import array
from collections.abc import Iterable
from dataclasses import dataclass
from math import inf
from typing import Protocol

from google.protobuf.duration_pb2 import Duration

from frontend.engine.routing import ANYWHERE, Routing
from frontend.errors import EngineDead, ServiceError
from frontend.logprobs import Scores
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32

MAX_RESENT = 3
"""Times that a request is sent again without a new token in between, as a core that lives lost it or counts
wrong."""
MAX_DEATHS = 64
"""Deaths of cores, one after another, that a request lives through without a new token. Who makes a core die
is found out by the next one at its address, in far fewer; this is for where nobody remembers, and so many
that somebody who only waits his turn meanwhile does not meet them."""


class Sink(Protocol):
    """Who receives a request's outputs."""

    @property
    def ended(self) -> bool:
        """Whether nothing more is expected from the core."""

    def started(self, queue_us: int, cached_tokens: int) -> None:
        """The request was scheduled for the first time; again, when it was sent again."""

    def push(
        self,
        index: int,
        position: int,
        token_ids: "array[int]",
        reason: int,
        matched: int,
        now: int,
        scores: Scores | None = None,
    ) -> bool:
        """Output of one sequence. True: the sequence ended here, but the core does not know it yet.

        now: time.monotonic_ns(). scores: log-probabilities of the tokens. Raises ProtocolError.
        """

    @property
    def missing_prompt_logprobs(self) -> int | None:
        """The first position of the prompt whose log-probability has not come; None: nothing is missing."""

    def push_prompt_logprobs(self, start: int, scores: Scores) -> None:
        """Log-probabilities of a part of the prompt. Raises ProtocolError."""

    def fail(self, error: ServiceError) -> None:
        """The request ended by an error."""

    def delivered(self) -> Iterable[tuple[int, "array[int]", bool]]:
        """(index, token ids so far, whether it has ended) of each sequence."""

    def run_out(self) -> None:
        """The request's time limit has passed while no core had it."""

    def abort(self) -> None:
        """Somebody has ended the request while no core had it."""


class Core(Protocol):
    """Who works on requests, each known to it by its handle."""

    in_flight: dict[int, "JournalEntry"]

    def abort(self, handle: int, *indexes: int) -> None:
        """It need not go on with these sequences; none named: with none of them."""


@dataclass(slots=True, eq=False)
class JournalEntry:
    """A request in flight."""

    request: engine_pb2.AddRequest  # as it was first sent
    sink: Sink
    sent: float  # when, by time.monotonic()
    handle: int  # 0: it waits for a core
    core: Core | None  # that has it; None: it waits for one
    routing: Routing = ANYWHERE
    refused_by: tuple[Core, ...] = ()  # as they had no time for it
    num_tokens: int = 0  # output when it was last lost
    num_losses: int = 0  # ... and how often it was lost with that many, by a core that lives
    num_deaths: int = 0  # ... and by one that does not
    timer: asyncio.TimerHandle | None = None  # ends its waiting

    @property
    def ticket(self) -> int:
        """Its name here; the handle changes whenever it is sent again."""
        return self.request.handle


class Journal:
    """All entries of an engine client; those in flight are with their cores, too."""

    def __init__(self, patience: float) -> None:
        """patience: seconds that a request waits for another core; 0: it fails at once."""
        self.num_resent = 0
        """Times that a request was sent again, since the start."""
        self.num_bytes = 0
        """Of the prompts of all entries."""
        self._patience = patience
        self._by_ticket: dict[int, JournalEntry] = {}
        self._waiting: dict[int, JournalEntry] = {}  # by ticket

    def __len__(self) -> int:
        return len(self._by_ticket)

    def add(
        self, request: engine_pb2.AddRequest, sink: Sink, core: Core, routing: Routing = ANYWHERE
    ) -> None:
        """A request has been sent."""
        entry = JournalEntry(request, sink, time.monotonic(), request.handle, core, routing)
        self._by_ticket[entry.ticket] = core.in_flight[entry.handle] = entry
        self.num_bytes += len(request.prompt_token_ids)

    def remove(self, ticket: int) -> JournalEntry | None:
        """Nobody cares for it any more. None when it is not here."""
        entry = self._by_ticket.get(ticket)
        if entry is not None:
            self.drop(entry)
        return entry

    def drop(self, entry: JournalEntry) -> None:
        """The same, for an entry at hand. It goes on saying which core had it."""
        del self._by_ticket[entry.ticket]
        self.num_bytes -= len(entry.request.prompt_token_ids)
        if entry.core is not None:
            del entry.core.in_flight[entry.handle]
        self._stop_waiting(entry)

    def take_back(self, entry: JournalEntry) -> None:
        """Its core has it no more; whoever calls sees to what becomes of it."""
        if entry.core is not None:
            del entry.core.in_flight[entry.handle]
            entry.core, entry.handle = None, 0

    @property
    def num_waiting(self) -> int:
        """Those that no core has."""
        return len(self._waiting)

    def in_flight(self) -> list[JournalEntry]:
        """Those that a core has."""
        return [entry for entry in self._by_ticket.values() if entry.core is not None]

    def waiting(self) -> list[JournalEntry]:
        """Those that wait for a core, in the order of their arrival."""
        return [self._waiting[ticket] for ticket in sorted(self._waiting)] if self._waiting else []

    def waits(self, ticket: int) -> bool:
        """Whether it is one of these."""
        return ticket in self._waiting

    def lose(
        self, entry: JournalEntry, error: ServiceError, too_often: ServiceError, *, is_dead: bool = False
    ) -> None:
        """The core does not work on it any more (as it is dead, or not): it waits to be sent again.

        It fails with `error` where nobody wants to wait, or with `too_often`.
        """
        self.take_back(entry)
        if not self._patience:
            self.fail(entry, error)
            return
        num_tokens = sum(len(tokens) for _, tokens, _ in entry.sink.delivered())
        if num_tokens != entry.num_tokens:
            entry.num_tokens, entry.num_losses, entry.num_deaths = num_tokens, 0, 0
        entry.num_deaths += is_dead
        entry.num_losses += not is_dead
        if entry.num_losses > MAX_RESENT or entry.num_deaths > MAX_DEATHS:
            self.fail(entry, too_often)
            return
        self._waiting[entry.ticket] = entry
        stopping, loop = entry.request.stopping, asyncio.get_running_loop()
        limit = self._left(entry, stopping.time_limit) if stopping.HasField("time_limit") else inf
        if limit < self._patience:
            entry.timer = loop.call_later(limit, self._run_out, entry)
        else:
            entry.timer = loop.call_later(self._patience, self.fail, entry, EngineDead())

    def fail(self, entry: JournalEntry, error: ServiceError) -> None:
        """It ends by an error."""
        self.drop(entry)
        entry.sink.fail(error)

    def fail_all(self, error: ServiceError) -> None:
        """So do all of them."""
        for entry in list(self._by_ticket.values()):
            self.fail(entry, error)

    def again(self, entry: JournalEntry, handle: int) -> engine_pb2.AddRequest:
        """What to send for one that waits: its tokens are output, and its time goes on running."""
        request = engine_pb2.AddRequest()
        request.CopyFrom(entry.request)
        request.handle = handle
        request.again = entry.num_losses + entry.num_deaths > 0
        request.age_us += round(1e6 * (time.monotonic() - entry.sent))
        put_delivered(request, entry.sink.delivered())
        missing = entry.sink.missing_prompt_logprobs
        if missing is None:
            request.ClearField("prompt_logprobs")
        else:
            request.prompt_logprobs_start = missing
        if request.HasField("deadline"):
            request.deadline.FromNanoseconds(round(self._left(entry, request.deadline) * 1e9))
        if request.stopping.HasField("time_limit"):
            limit = request.stopping.time_limit
            limit.FromNanoseconds(round(self._left(entry, limit) * 1e9))
        return request

    def resent(self, entry: JournalEntry, core: Core, handle: int) -> None:
        """It has been sent to a core, under this handle."""
        self._stop_waiting(entry)
        self.num_resent += 1
        entry.core, entry.handle = core, handle
        core.in_flight[handle] = entry

    def _left(self, entry: JournalEntry, span: Duration) -> float:
        """Seconds that are left of what was granted when it was first sent."""
        granted = span.seconds + span.nanos / 1e9
        return max(granted - (time.monotonic() - entry.sent), 0.0)

    def _run_out(self, entry: JournalEntry) -> None:
        self.drop(entry)
        entry.sink.run_out()

    def _stop_waiting(self, entry: JournalEntry) -> None:
        self._waiting.pop(entry.ticket, None)
        if entry.timer is not None:
            entry.timer.cancel()
            entry.timer = None


def put_delivered(
    request: engine_pb2.AddRequest, delivered: Iterable[tuple[int, "array[int]", bool]]
) -> None:
    """Tells the core what there is of each sequence, in the form of Sink.delivered()."""
    del request.delivered[:], request.ended_indexes[:]
    for index, token_ids, has_ended in delivered:
        if has_ended:
            request.ended_indexes.append(index)
        elif token_ids:
            request.delivered.add(index=index, token_ids=pack_u32(token_ids))
