"""The engine core: events in, one step, outputs out.

EngineCore.step() can run in-process, without sockets and threads: it takes events from an inbox, submits
plans to a worker (anything that executes plans) and passes messages to a function.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import NoReturn, Protocol

from engine_core.counters import Counters
from engine_core.errors import Code, InvariantError, Refused
from engine_core.intake.grammar_preparation import Compiler, GrammarPreparation
from engine_core.intake.intake import Intake
from engine_core.intake.overload import UNBOUNDED, QueueBounds
from engine_core.intake.validation import Limits
from engine_core.io.error_replies import BUG, ErrorReplies, no_token_error
from engine_core.io.inbox import Event, FrontendGone, HealthProbe, Inbox, Received, SocketsFailed
from engine_core.io.load_report import describe_load
from engine_core.kv_cache.cache_watches import CacheWatches
from engine_core.pacing import Pace
from engine_core.request import Request
from engine_core.scheduler.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from engine_core.utilities.answers import UtilityAnswers
from pagewire.internal.v1.engine_pb2 import (
    Abort,
    AddRequest,
    EngineMessage,
    Hello,
    Load,
    Utility,
    Welcome,
)
from pagewire.log_fields import about
from pagewire.retry_after import Rate

log = logging.getLogger(__name__)

_IDLE_CHECK_INTERVAL_S = 60.0
"""check_invariants() visits every block (10 ms for 200,000), and a request may be about to arrive."""


class Worker(Compiler, Protocol):
    """Executes plans in order, and compiles grammars beside them."""

    on_wait: Callable[[], None]
    """Set by the engine core. Every method that waits calls it a few times a second: a step may be long."""

    def submit(self, plan: Plan) -> None:
        """Queues a step behind those before it. Raises when the worker is gone."""

    def collect(self) -> Result:
        """Waits for the oldest result that was not collected. Raises when it will not arrive."""

    def await_result(self, seconds: float) -> None:
        """Returns when collect() would not wait, or after so many seconds. Raises as collect() does."""

    def wait_for(self, inbox: Inbox) -> None:
        """Returns when there may be events. Raises when the worker is gone."""


@dataclass(frozen=True, slots=True)
class Identity:
    """What the core tells each frontend about itself."""

    welcome: Welcome
    limits: Limits

    @property
    def epoch(self) -> int:
        """Number of this start of the core."""
        return self.welcome.epoch


class EngineCore:
    """The step loop. All methods run in one thread."""

    def __init__(
        self,
        identity: Identity,
        scheduler: Scheduler,
        worker: Worker,
        inbox: Inbox,
        send: Callable[[bytes, EngineMessage], None],
        clock: Callable[[], float] = monotonic,
        *,
        ahead: bool = False,
        heartbeat: Callable[[], None] = lambda: None,
        bounds: QueueBounds = UNBOUNDED,
    ) -> None:
        """send: takes (frontend, message) and returns at once. clock: seconds; that of Received.at.

        heartbeat: called in each turn of the loop and while it waits: proves that the loop is alive.
        ahead: a step is planned while the one before it runs; else when its result has been taken in.
        bounds: how much may wait.
        """
        self.scheduler = scheduler
        self.counters = Counters()
        self._identity = identity
        self.intake = Intake(scheduler, identity.limits, clock, bounds)
        self._epoch = identity.epoch
        self._cache_watches = CacheWatches(scheduler.prefix_cache, send)
        self._replies = ErrorReplies(identity.epoch, send, self.counters)
        self._worker = worker
        self._grammars = GrammarPreparation(scheduler, worker)
        self._inbox = inbox
        self._send = send
        self._clock = clock
        self._heartbeat = heartbeat
        worker.on_wait = self._while_waiting
        self._max_under_way = 2 if ahead else 1
        self._pace = Pace()
        self._output_rate = Rate()
        self._utilities = UtilityAnswers(scheduler, self.intake, self._load, send, clock, self.counters)
        self._next_idle_check = 0.0

    @property
    def epoch(self) -> int:
        """Number of this start of the core."""
        return self._epoch

    def run(self) -> NoReturn:
        """Steps until an exception: a failure, or the request to stop."""
        while True:
            self.step()

    def step(self) -> None:
        """Events, schedule, submit; then a result, update, outputs. Waits for an event when idle.

        Waits for a result when the worker has enough to do, or when nothing can be planned without it.
        """
        self._heartbeat()
        if delay := self._pace.delay(self._clock()) or self.scheduler.idle_sleep:
            self._worker.await_result(delay)
        self.intake.exchange_quotas()
        self._take_events()
        self._utilities.advance()
        self._grammars.review()
        now = self._clock()
        plan = self.scheduler.schedule(now)
        self._publish(only_finishes=True)
        self._tell_of_faults()
        if plan.rows:
            self._worker.submit(plan)
            self.counters.step_planned(plan)
            self._pace.sent(plan, now, self._clock())
        under_way = len(self.scheduler.in_flight)
        if under_way == self._max_under_way or (under_way and not plan.rows):
            self._take_result()
        self._cache_watches.publish()

    def fail_all(self, reason: str, message: str) -> None:
        """Fails every request in flight, and those that have just arrived."""
        self.scheduler.quarantine.leave()
        for request in list(self.scheduler.requests):
            self._fail(request, Code.UNAVAILABLE, reason, message)
        for event in self._inbox.take():
            if isinstance(event, Received) and event.message.HasField("add_request"):
                handle = event.message.add_request.handle
                self._replies.fail(event.frontend, handle, Code.UNAVAILABLE, reason, message)

    # Events.

    def _take_events(self) -> None:
        """Handles events. Waits only when no request, plan or answer is in flight."""
        if not (self.scheduler.requests or self.scheduler.in_flight or self._inbox or self._utilities):
            self._check_when_idle()
            self.counters.idle()
            self._worker.wait_for(self._inbox)
        for event in self._inbox.take():
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            self._handle_message(event)
        elif isinstance(event, FrontendGone):
            self._lose_frontend(event.frontend)
        elif isinstance(event, HealthProbe):
            event.answer(True)
        else:
            assert isinstance(event, SocketsFailed)
            raise RuntimeError("the thread of the frontends' socket has ended") from event.error

    def _while_waiting(self) -> None:
        """Answers heartbeats during a step, which may take longer than their timeout. Other events wait."""
        self._heartbeat()
        for event in self._inbox.take_if(self._asks_for_life):
            self._handle(event)

    def _asks_for_life(self, event: Event) -> bool:
        return (
            isinstance(event, Received)
            and event.message.HasField("hello")
            and event.message.hello.known_epoch == self._epoch
        )

    def _handle_message(self, event: Received) -> None:
        """Handles one message. An exception fails that message alone."""
        kind = event.message.WhichOneof("message")
        frontend = event.frontend
        try:
            if kind == "add_request":
                self._add_request(frontend, event.message.add_request, event.at)
            elif kind == "abort":
                self._abort(frontend, event.message.abort)
            elif kind == "hello":
                self._answer_hello(frontend, event.message.hello)
            elif kind == "utility":
                self._answer_utility(frontend, event.message.utility, event.at)
            elif kind == "watch_cache":
                self._cache_watches.take(frontend, event.message.watch_cache)
        except Exception:
            self.counters.internal_errors += 1
            if self.counters.internal_errors.bit_count() == 1:
                name = event.message.add_request  # empty for other kinds
                with about(request_id=name.request_id, tenant=name.tenant):
                    log.exception("cannot handle a message of kind %s", kind)
            if kind == "add_request":
                self._give_up(frontend, event.message.add_request.handle)

    def _add_request(self, frontend: bytes, message: AddRequest, arrival: float) -> None:
        requests = self.scheduler.requests
        if requests.by_handle(frontend, message.handle):
            self.counters.bad_messages += 1
            if self.counters.bad_messages.bit_count() == 1:  # 1, 2, 4, 8 ...: a flood must not fill the log
                log.warning("handles that a frontend uses twice, dropped: %d", self.counters.bad_messages)
            return  # a failure would end the request that has the handle
        try:
            request = self.intake.admit(message, frontend, arrival)
        except Refused as refusal:
            self._replies.refuse(frontend, message.handle, refusal)
        else:
            self.counters.requests += 1
            self._grammars.add(request)
            if message.ended_indexes:
                self.scheduler.abort(request, frozenset(message.ended_indexes))

    def _abort(self, frontend: bytes, message: Abort) -> None:
        request = self.scheduler.requests.by_handle(frontend, message.handle)
        if request:
            self.scheduler.abort(request, frozenset(message.indexes))

    def _answer_hello(self, frontend: bytes, hello: Hello) -> None:
        if hello.known_epoch == self._epoch:
            self._send(frontend, EngineMessage(load=self._load()))
            return
        # A frontend that does not know this epoch has forgotten the requests that it sent under it.
        for request in self.scheduler.requests.of_frontend(frontend):
            self.scheduler.abort(request)
        self._cache_watches.drop(frontend)
        self._send(frontend, EngineMessage(welcome=self._identity.welcome))

    def _answer_utility(self, frontend: bytes, utility: Utility, arrival: float) -> None:
        self.counters.bad_messages += not self._utilities.ask(frontend, utility, arrival)

    def _lose_frontend(self, frontend: bytes) -> None:
        """Fails the requests of a frontend, which may be alive and only have been too slow."""
        self._cache_watches.drop(frontend)
        requests = self.scheduler.requests.of_frontend(frontend)
        self.counters.frontends_lost += bool(requests)
        for request in requests:
            self._fail(request, Code.UNAVAILABLE, "FRONTEND_LOST", "the engine could not reach the frontend")
            self.intake.lost(request)
        if requests:
            log.warning("a frontend is gone: %d requests aborted", len(requests))

    # Results and outputs.

    def _take_result(self) -> None:
        result = self._worker.collect()
        self._pace.ended(result, self._clock())
        self.counters.step_done(result)
        failed = self.scheduler.update(result)
        self._output_rate.add(len(result.token_ids), self._clock())
        self._publish()
        for request in failed:
            self._replies.fail(request.frontend, request.handle, *no_token_error(request))
        self._tell_of_faults()

    def _publish(self, only_finishes: bool = False) -> None:
        """Sends outputs to each frontend.

        only_finishes: before a step, sends ends that do not depend on it (by the clock or by an Abort);
        everything else is sent with the outputs of the step.
        """
        if only_finishes and not self.scheduler.has_finishes:
            return
        outputs = self.scheduler.take_outputs()
        if not outputs:
            return
        if outputs.started:
            self.intake.started(len(outputs.started))
        for frontend, message in encode_outputs(outputs, self._epoch, self.scheduler.step):
            self._send(frontend, EngineMessage(step_outputs=message))

    def _tell_of_faults(self) -> None:
        for request in self.scheduler.faults.take() if self.scheduler.faults else ():
            self.counters.internal_errors += 1
            self._replies.fail(request.frontend, request.handle, *BUG)

    def _fail(self, request: Request, code: Code, reason: str, message: str) -> None:
        self.scheduler.abort(request)
        self._replies.fail(request.frontend, request.handle, code, reason, message)

    def _give_up(self, frontend: bytes, handle: int) -> None:
        """Ends a request whose arrival raised, if it was added."""
        request = self.scheduler.requests.by_handle(frontend, handle)
        if request:
            self.scheduler.abort(request)
        self._replies.fail(frontend, handle, *BUG)

    # Figures.

    def _load(self) -> Load:
        rate = self._output_rate.per_second(self._clock())
        return describe_load(
            self.scheduler, self._epoch, rate, self.intake.refused, self.counters.draft_tokens
        )

    def _check_when_idle(self) -> None:
        """Checks invariants while there is no work. A violation is logged and counted; the core goes on."""
        now = self._clock()
        if now < self._next_idle_check:
            return
        self._next_idle_check = now + _IDLE_CHECK_INTERVAL_S
        try:
            self.scheduler.check_invariants()
        except InvariantError as error:
            self.counters.broken_invariants += 1
            log.error("the scheduler's state contradicts itself: %s", error)
