"""An engine core as this frontend knows it: what it says about itself, the requests that it has, and the
messages to it. (Messages from it: connection.py.)"""

import asyncio
import itertools
import logging
from abc import ABC, abstractmethod
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from frontend.engine.logprobs import Scores
from frontend.errors import EngineNotReady, ServiceError
from pagewire.internal.v1 import engine_pb2
from pagewire.v1 import admin_pb2, generation_pb2

log = logging.getLogger(__name__)

ANSWER = 10.0
"""Seconds until a call times out. A core answers from its step loop, so this must exceed the longest step: a
large prompt on a slow CPU."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A request's routing hints."""

    rank: int | None = None
    session_id: str = ""
    adapter: bytes = b""
    """Digest of the request's adapter; see choose()."""


ANYWHERE = Routing()


def routing_of(hints: generation_pb2.RoutingHints) -> Routing:
    """Returns the hints of a public request."""
    rank = hints.data_parallel_rank if hints.HasField("data_parallel_rank") else None
    return Routing(rank, hints.session_id) if rank is not None or hints.session_id else ANYWHERE


class Sink(Protocol):
    """Receives a request's outputs."""

    @property
    def ended(self) -> bool:
        """True when no more output is expected from the core."""

    def drafted(self, method: int, num_drafted: int, num_accepted: int) -> None:
        """Tokens were drafted for one of its sequences; so many of them are in the output that comes next.
        method: a DraftMethod of engine.proto."""

    def started(self, queue_us: int, cached_tokens: int, waits_us: Sequence[int] = ()) -> None:
        """The request was scheduled for the first time since it was last sent. waits_us: of queue_us, by
        cause; see StepOutputs.started_waits_us."""

    def paused(self, pause_us: int, now: int) -> None:
        """The request was preempted, and runs again or has ended. now: time.monotonic_ns()."""

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
        """Appends output of one sequence. Returns True when the sequence ended here without the core's
        knowledge.

        now: time.monotonic_ns(). scores: log-probabilities of the tokens. Raises ProtocolError.
        """

    @property
    def missing_prompt_logprobs(self) -> int | None:
        """The first prompt position whose log-probability is missing; None: none is."""

    def push_prompt_logprobs(self, start: int, scores: Scores) -> None:
        """Appends log-probabilities of a part of the prompt. Raises ProtocolError."""

    vector: bytes | None
    """The vector of a request that pools, set before its end is pushed; None: it has none."""

    def fail(self, error: ServiceError) -> None:
        """Ends the request with an error."""

    def delivered(self) -> Iterable[tuple[int, "array[int]", bool]]:
        """Yields (index, token ids so far, whether it has ended) for each sequence."""

    def run_out(self) -> None:
        """Ends the request because its time limit passed while no core had it."""

    def abort(self) -> None:
        """Ends the request because it was aborted while no core had it."""


@dataclass(slots=True, eq=False)
class JournalEntry:
    """A request in flight, or waiting for a core."""

    request: engine_pb2.AddRequest  # as it was first sent
    sink: Sink
    sent: float  # when, by time.monotonic()
    handle: int  # 0: it waits for a core
    core: "Core | None"  # None: it waits for one
    routing: Routing = ANYWHERE
    media: bytes | bytearray = b""  # packed
    holder: str = ""  # address of a living core that has blocks of it
    refused_by: tuple["Core", ...] = ()  # for reasons that may not hold at others
    num_tokens: int = 0  # output tokens when it was last lost
    num_losses: int = 0  # ... and how often live cores lost it at that count
    num_deaths: int = 0  # ... and how often cores died with it at that count
    timer: asyncio.TimerHandle | None = None  # ends the wait

    @property
    def ticket(self) -> int:
        """The entry's key in the journal. (The handle changes with each resend.)"""
        return self.request.handle


class UtilityCalls:
    """The pending calls of one connection."""

    def __init__(self, send: Callable[[engine_pb2.FrontendMessage], bool]) -> None:
        """send: returns False when the core cannot be reached."""
        self._send = send
        self._numbers = itertools.count(1)
        self._open: dict[int, asyncio.Future[engine_pb2.UtilityResult]] = {}

    def __len__(self) -> int:
        return len(self._open)

    async def ask(self, call: engine_pb2.Utility, seconds: float | None = ANSWER) -> engine_pb2.UtilityResult:
        """Returns the core's reply. seconds: until there is none; None: as long as the core is there. Raises
        EngineNotReady when there is none."""
        question = engine_pb2.Utility()
        question.CopyFrom(call)
        question.call_id = next(self._numbers)
        answer: asyncio.Future[engine_pb2.UtilityResult] = asyncio.get_running_loop().create_future()
        self._open[question.call_id] = answer
        try:
            if not self._send(engine_pb2.FrontendMessage(utility=question)):
                raise EngineNotReady("the engine does not take requests")
            return await asyncio.wait_for(answer, seconds)
        except TimeoutError:
            raise EngineNotReady("the engine does not answer") from None
        finally:
            self._open.pop(question.call_id, None)

    def take(self, result: engine_pb2.UtilityResult) -> None:
        """Resolves the call that a reply belongs to. A reply to no pending call is dropped."""
        answer = self._open.pop(result.call_id, None)
        if answer is not None and not answer.done():
            answer.set_result(result)

    def drop(self) -> None:
        """Fails all pending calls with EngineNotReady."""
        answers, self._open = self._open, {}
        for answer in answers.values():
            if not answer.done():
                answer.set_exception(EngineNotReady("the engine went away"))


class Core(ABC):
    """One core at one address, across restarts. Methods belong to the event loop's thread."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.rank = 0
        """Index in the address list."""
        self.in_flight: dict[int, JournalEntry] = {}  # by handle
        self.welcome: engine_pb2.Welcome | None = None
        """The last one received; what it says of the model stays valid while the core is away."""
        self.epoch = 0  # of the Welcome, while connected; 0: the core is away
        self.num_unanswered = 0  # Hellos since the core's last message
        self.leaving = False  # removed from the address list: gets no new requests
        self.is_draining = False  # it ends soon, and gets no new requests
        self.differs = ""  # how its model differs from the other cores'
        self.last_load: admin_pb2.RankLoad | None = None
        """Load at the core's last heartbeat; None: it is away."""
        self.held_adapters: set[bytes] = set()
        """Digests of adapters that its worker has loaded, as of the core's last message about them."""
        self.protocol_errors = 0
        self.utility_calls = UtilityCalls(self.send)
        self._unsent: deque[engine_pb2.FrontendMessage] = deque()  # aborts, while the core does not read
        self._num_of_others = 0  # requests of other frontends, as of the core's last Load

    @abstractmethod
    def send(self, message: engine_pb2.FrontendMessage, more: bytes | bytearray = b"") -> bool:
        """Sends without waiting. more: see transport.pack. False when there is no connection or the core does
        not read."""

    @property
    def serves(self) -> bool:
        """True when requests may be sent to this core."""
        return self.epoch > 0 and not (self.leaving or self.differs or self.is_draining)

    @property
    def role(self) -> engine_pb2.CoreRole:
        """What it is for, as it says."""
        return self.welcome.role if self.welcome is not None else engine_pb2.CORE_ROLE_UNSPECIFIED

    def may_send_blocks_to(self, reader: "Core") -> bool:
        """Whether another core may copy KV blocks of this one, as far as both have said."""
        if reader is self or not self.epoch or self.welcome is None or reader.welcome is None:
            return False
        namespace = self.welcome.transfer_namespace
        return bool(namespace) and namespace == reader.welcome.transfer_namespace

    @property
    def num_in_flight(self) -> int:
        """Requests of this frontend at this core."""
        return len(self.in_flight)

    @property
    def load(self) -> float:
        """Known requests of all frontends on this core, relative to how many it runs at once."""
        assert self.welcome is not None
        return self.num_known / max(self.welcome.max_num_seqs, 1)

    @property
    def num_known(self) -> int:
        """Requests on this core: those of this frontend, and of others as of the last heartbeat."""
        return len(self.in_flight) + self._num_of_others

    def add(self, request: engine_pb2.AddRequest, media: bytes | bytearray = b"") -> bool:
        """Sends a request, after all pending aborts: it may reuse the id of an aborted one. media: packed.
        Returns False when the core accepts none now."""
        self.flush()
        return not self._unsent and self.send(engine_pb2.FrontendMessage(add_request=request), media)

    def abort(self, handle: int, *indexes: int, detach: bool = False) -> None:
        """Aborts these sequences of a request, or all of them when none is named. detach: after the grace
        that the request has for its client to come back.

        An abort that cannot be sent now is sent later: nothing else would end the request on the core.
        """
        abort = engine_pb2.Abort(handle=handle, indexes=indexes, detach=detach)
        self._unsent.append(engine_pb2.FrontendMessage(abort=abort))
        self.flush()

    def take_adapters(self, table: engine_pb2.AdapterTable) -> None:
        """Takes which adapters its worker holds, or what has changed of that."""
        if not table.is_change:
            self.held_adapters.clear()
        self.held_adapters.update(_digests(table.held_digests))
        self.held_adapters.difference_update(_digests(table.dropped_digests))

    def watch_cache(self, watch: int, *, ends: bool = False) -> None:
        """Begins a watch of the core's prefix cache, or ends it."""
        self.send(engine_pb2.FrontendMessage(watch_cache=engine_pb2.WatchCache(watch=watch, ends=ends)))

    def reply(self, command: engine_pb2.FrontendCommand, status: admin_pb2.FrontendStatus) -> None:
        """Answers a command."""
        reply = engine_pb2.FrontendReply(asker=command.asker, call_id=command.call_id, status=status)
        self.send(engine_pb2.FrontendMessage(frontend_reply=reply))

    def flush(self) -> None:
        """Sends the aborts that could not be sent before."""
        while self._unsent and self.send(self._unsent[0]):
            self._unsent.popleft()

    def count_error(self, text: str) -> None:
        """Counts and logs a message that cannot be interpreted."""
        self.protocol_errors += 1
        if self.protocol_errors.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
            log.error("%s (%d protocol errors so far)", text, self.protocol_errors)


def _digests(column: bytes) -> Iterable[bytes]:
    return (column[start : start + 32] for start in range(0, len(column), 32))
