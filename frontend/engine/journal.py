"""The journal of in-flight requests, with everything needed to send them again.

A stream holds every token that it has received, the request is kept as first sent, and a token is a function
of prompt, parameters, seed and position. So when a core is lost, another one can continue its requests: the
tokens so far travel as delivered output, and the next one follows them.

         add()              lose()                 resent()
    ──────────> in flight ─────────> waiting ─────────────────> in flight
                    │         hold() ─> │  too long, or too often without a new token
                    └─> remove()        └─> the sink fails
"""

import asyncio
import time
from array import array
from collections.abc import Iterable
from math import inf

from google.protobuf.duration_pb2 import Duration

from frontend.engine.core import ANYWHERE, Core, JournalEntry, Routing, Sink
from frontend.errors import EngineDead, EngineNotReady, ServiceError
from pagewire.internal.v1 import engine_pb2
from pagewire.ipc.columns import pack_u32

MAX_RESENT = 3
"""Times that a request is resent without a new token in between because a live core lost it or miscounted."""
MAX_DEATHS = 64
"""Consecutive deaths that a request survives without a new token, for each core that there is: every core
needs its own to find a culprit. Its crash journal does in far fewer; this bound is for cores that cannot keep
one, and is high enough that a request that merely waits in the queue does not reach it."""


class Journal:
    """All requests of an engine client; in-flight entries are also listed by their core."""

    def __init__(self, patience: float) -> None:
        """patience: seconds that a request waits for another core; 0: it fails at once."""
        self.num_resent = 0
        """Requests resent since the start."""
        self.num_handed_over = 0
        """Requests that went on at a core that decodes, since the start."""
        self.num_bytes = 0
        """Bytes of the prompts of all entries."""
        self._patience = patience
        self._by_ticket: dict[int, JournalEntry] = {}
        self._waiting: dict[int, JournalEntry] = {}  # by ticket

    def __len__(self) -> int:
        return len(self._by_ticket)

    def add(
        self,
        request: engine_pb2.AddRequest,
        sink: Sink,
        core: Core,
        routing: Routing = ANYWHERE,
        media: bytes | bytearray = b"",
    ) -> None:
        """Records a request that has been sent. media: packed."""
        entry = JournalEntry(request, sink, time.monotonic(), request.handle, core, routing, media)
        self._by_ticket[entry.ticket] = core.in_flight[entry.handle] = entry
        self.num_bytes += _prompt_bytes(entry)

    def hold(
        self,
        request: engine_pb2.AddRequest,
        sink: Sink,
        patience: float,
        routing: Routing = ANYWHERE,
        media: bytes | bytearray = b"",
    ) -> None:
        """Records a request that no core takes yet. It waits for one as a lost request does, for so many
        seconds, then fails with EngineNotReady. media: packed."""
        entry = JournalEntry(request, sink, time.monotonic(), 0, None, routing, media)
        self._by_ticket[entry.ticket] = entry
        self.num_bytes += _prompt_bytes(entry)
        self._wait(entry, patience, EngineNotReady())

    def remove(self, ticket: int) -> JournalEntry | None:
        """Removes and returns an entry; None when there is none."""
        entry = self._by_ticket.get(ticket)
        if entry is not None:
            self.drop(entry)
        return entry

    def drop(self, entry: JournalEntry) -> None:
        """Removes an entry. Its `core` still names the core that had it."""
        del self._by_ticket[entry.ticket]
        self.num_bytes -= _prompt_bytes(entry)
        if entry.core is not None:
            del entry.core.in_flight[entry.handle]
        self._stop_waiting(entry)

    def take_back(self, entry: JournalEntry) -> None:
        """Detaches an entry from its core; the caller must resend or fail it."""
        if entry.core is not None:
            del entry.core.in_flight[entry.handle]
            entry.core, entry.handle = None, 0

    @property
    def num_waiting(self) -> int:
        """Entries that no core has."""
        return len(self._waiting)

    def in_flight(self) -> list[JournalEntry]:
        """Entries that a core has."""
        return [entry for entry in self._by_ticket.values() if entry.core is not None]

    def waiting(self) -> list[JournalEntry]:
        """Entries that wait for a core, in order of arrival."""
        return [self._waiting[ticket] for ticket in sorted(self._waiting)] if self._waiting else []

    def waits(self, ticket: int) -> bool:
        """True when the entry waits for a core."""
        return ticket in self._waiting

    def lose(
        self,
        entry: JournalEntry,
        error: ServiceError,
        too_often: ServiceError,
        *,
        is_dead: bool = False,
        num_cores: int = 1,
    ) -> None:
        """Lets an entry wait to be resent after its core lost it (is_dead: by dying, as one of so many).

        It fails with `error` when waiting is disabled, and with `too_often` when it was lost too often.
        """
        self.take_back(entry)
        entry.holder = ""
        if not self._patience:
            self.fail(entry, error)
            return
        num_tokens = sum(len(tokens) for _, tokens, _ in entry.sink.delivered())
        if num_tokens != entry.num_tokens:
            entry.num_tokens, entry.num_losses, entry.num_deaths = num_tokens, 0, 0
        entry.num_deaths += is_dead
        entry.num_losses += not is_dead
        if entry.num_losses > MAX_RESENT or entry.num_deaths > MAX_DEATHS * num_cores:
            self.fail(entry, too_often)
            return
        self._wait(entry, self._patience, EngineDead())

    def fail(self, entry: JournalEntry, error: ServiceError) -> None:
        """Ends an entry with an error."""
        self.drop(entry)
        entry.sink.fail(error)

    def fail_all(self, error: ServiceError) -> None:
        """Ends every entry with an error."""
        for entry in list(self._by_ticket.values()):
            self.fail(entry, error)

    def again(self, entry: JournalEntry, handle: int) -> engine_pb2.AddRequest:
        """Returns the message that resends a waiting entry: its tokens become delivered output, and its
        deadlines are reduced by the time that has passed."""
        request = engine_pb2.AddRequest()
        request.CopyFrom(entry.request)
        request.handle, request.holder = handle, entry.holder
        request.again = entry.num_losses + entry.num_deaths > 0 or bool(entry.holder)
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

    def resent(self, entry: JournalEntry, core: Core, handle: int, *, is_handed_over: bool = False) -> None:
        """Records that an entry was sent to a core under a new handle. is_handed_over: since the core before
        was for its prompt alone."""
        self._stop_waiting(entry)
        self.num_handed_over += is_handed_over
        self.num_resent += not is_handed_over
        entry.core, entry.handle = core, handle
        core.in_flight[handle] = entry

    def _wait(self, entry: JournalEntry, patience: float, error: ServiceError) -> None:
        """Lets an entry wait for a core, for so many seconds or until its time limit."""
        self._waiting[entry.ticket] = entry
        stopping, loop = entry.request.stopping, asyncio.get_running_loop()
        limit = self._left(entry, stopping.time_limit) if stopping.HasField("time_limit") else inf
        if limit < patience:
            entry.timer = loop.call_later(limit, self._run_out, entry)
        else:
            entry.timer = loop.call_later(patience, self.fail, entry, error)

    def _left(self, entry: JournalEntry, span: Duration) -> float:
        """Returns the seconds left of a duration that was granted when the request was first sent."""
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


def _prompt_bytes(entry: JournalEntry) -> int:
    request = entry.request
    return len(request.prompt_token_ids) + request.embeddings.ByteSize() + len(entry.media)


def put_delivered(
    request: engine_pb2.AddRequest, delivered: Iterable[tuple[int, "array[int]", bool]]
) -> None:
    """Writes each sequence's tokens so far into a request; `delivered` is what Sink.delivered() yields."""
    del request.delivered[:], request.ended_indexes[:]
    for index, token_ids, has_ended in delivered:
        if has_ended:
            request.ended_indexes.append(index)
        elif token_ids:
            request.delivered.add(index=index, token_ids=pack_u32(token_ids))
