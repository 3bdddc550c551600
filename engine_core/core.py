"""The engine core: events in, one step, outputs out.

EngineCore.step() can run in-process, without sockets and threads: it takes events from an inbox, submits
plans to a worker (anything that executes plans) and passes messages to a function.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable
from math import inf
from time import monotonic
from typing import NoReturn, Protocol

from engine_core.adapters.memory import AdapterMemory, AdapterWorker
from engine_core.adapters.names import AdapterNames
from engine_core.adapters.sources import NO_ADAPTERS, AdapterOptions
from engine_core.context import BUG, CoreContext, Identity, no_token_error
from engine_core.drain import Drain
from engine_core.errors import Code, InvariantError, Refused
from engine_core.frontend_messages import FrontendMessages
from engine_core.intake.intake import Intake
from engine_core.intake.overload import UNBOUNDED, QueueBounds
from engine_core.intake.preparation import Compiler, Grammars, Preparation
from engine_core.io.inbox import (
    DrainRequested,
    Event,
    FrontendGone,
    HealthProbe,
    Inbox,
    Received,
    SocketsFailed,
)
from engine_core.kv_transfer.pulls import NO_TRANSFER, BlockReader, TransferOptions
from engine_core.kv_transfer.transfer import KvTransfer
from engine_core.ownership import keep_scores
from engine_core.quarantine.quarantine import IDLE_SLEEP_S
from engine_core.request import Request
from engine_core.scheduler.outputs.outputs import encode_outputs
from engine_core.scheduler.scheduler import Scheduler
from engine_core.step.plan import Plan
from engine_core.step.result import Result
from pagewire.errors import StartupError
from pagewire.internal.v1.engine_pb2 import AdapterResult, AdapterTable, EngineMessage, NamedAdapter

log = logging.getLogger(__name__)

_MAX_PATIENCE = 0.75
"""Share of a step to wait for at most. Steps of equal size differ: contexts grow."""
_RECOVERY = 0.002
"""What patience gains with each step that began in time; a step that did not halves it."""
_TOLERANCE = 0.02
"""Share of a step that the device may idle beyond its own gap before that counts as waiting."""
_GAP_GROWTH = 1.01
"""Factor by which the device's own gap, the shortest of recent ones, grows with each step."""
_LEAST_DELAY_S = 0.002
"""A shorter wait gains a late arrival less than it costs all requests: to wait is to be woken once more for
each step, which takes a tenth of a millisecond of a core that a CPU's worker may need."""
_PLANNING_FACTOR = 2.0
"""How much longer planning may take than the slowest of the recent plans."""
_PLANNING_DECAY = 0.9
_IDLE_CHECK_INTERVAL_S = 60.0
"""check_invariants() visits every block (10 ms for 200,000), and a request may be about to arrive."""


class Pace:
    """When to plan the next step while a step is running: as late as the device allows.

        device   |------------- k -------------|------------- k+1 -----
        core     ^ result of k-1     ^ plan     ^ result of k
                 |<----- delay ----->|<- margin ->|

    A request that arrives before the plan is made is in step k+1; a later one waits for one step more. If
    plans were made at once, step k+1 would be closed when step k has hardly begun. So the core waits; but a
    device that waits for a plan costs all requests more than a late arrival costs one. The margin is
    generous, and grows each time the device had to wait: on a busy machine, plans are made early.

    A device that computes in the worker's own thread (a CPU) always has a gap between two steps: it sends a
    result and reads the next plan. The shortest gap is its own; a longer one was waiting.

    Times are in seconds, on one clock.
    """

    def __init__(self) -> None:
        self.patience = _MAX_PATIENCE
        # (tokens of a plan; whether it was sent behind another one), oldest first
        self._in_flight: deque[tuple[int, bool]] = deque()
        self._began = 0.0  # the oldest plan in flight
        self._num_tokens, self._duration = 1, 0.0  # of the last step that ended
        self._ended_ns = 0  # on the device's clock
        self._own_gap_ns = inf  # of the device, between two steps
        self._planning = 0.0  # the slowest of recent plans; older ones count less

    def sent(self, plan: Plan, began: float, now: float) -> None:
        """Registers a plan that was sent now. began: when planning began."""
        self._planning = max(now - began, _PLANNING_DECAY * self._planning)
        if not self._in_flight:
            self._began = now
        self._in_flight.append((sum(plan.counts), bool(self._in_flight)))

    def ended(self, result: Result, now: float, most_ahead: int = 1) -> None:
        """Registers the result of the oldest plan; the next plan, if there is one, is running.

        most_ahead: see delay().
        """
        self._num_tokens, is_behind = self._in_flight.popleft()
        self._duration = result.duration_us / 1e6
        if most_ahead > 1:  # stages compute at the same time: results come more often than steps take
            self._duration = min(self._duration, now - self._began)
        self._began = now
        tolerated_ns = _TOLERANCE * 1000 * result.duration_us
        overlaps = most_ahead > 1 or result.started_ns < self._ended_ns - tolerated_ns
        if is_behind and not overlaps and self._waited_ns(result) > tolerated_ns:
            self.patience /= 2
        else:
            self.patience = min(_MAX_PATIENCE, self.patience + _RECOVERY)
        self._ended_ns = result.started_ns + 1000 * result.duration_us

    def _waited_ns(self, result: Result) -> float:
        """Returns how long the device waited for the plan of a result, which was sent behind another one."""
        gap = max(0, result.started_ns - self._ended_ns)
        self._own_gap_ns = min(gap, _GAP_GROWTH * self._own_gap_ns)
        return gap - self._own_gap_ns

    def delay(self, now: float, most_ahead: int = 1) -> float:
        """Returns the seconds until the next plan should be made; 0: now. most_ahead: plans that the device
        computes at the same time.

        A step takes at least as long as the last one, a smaller step its share of that: what takes equally
        long for few and many tokens (reading the weights) only makes it longer.
        """
        if len(self._in_flight) != most_ahead:
            return 0.0
        share = min(1.0, self._in_flight[0][0] / self._num_tokens)
        margin = _PLANNING_FACTOR * self._planning
        delay = self._began + self.patience * share * self._duration - margin - now
        return delay if delay >= _LEAST_DELAY_S else 0.0


class Worker(Compiler, AdapterWorker, BlockReader, Protocol):
    """Executes plans in order; compiles grammars, loads adapters and reads blocks beside them."""

    on_wait: Callable[[], None]
    """Set by the engine core. Every method that waits calls it a few times a second: a step may be long."""

    def submit(self, plan: Plan) -> None:
        """Queues a step behind those before it. Raises when the worker is gone."""

    def collect(self) -> Result:
        """Waits for the oldest result that was not collected. Raises when it will not arrive."""

    def await_result(self, seconds: float) -> None:
        """Returns when collect() would not wait, or after so many seconds. Raises as collect() does."""

    def await_burst(self, inbox: Inbox) -> None:
        """Returns when collect() would not wait, or when there are events: then the worker takes no further
        step of the plan. Raises as collect() does."""

    def wait_for(self, inbox: Inbox) -> None:
        """Returns when there may be events. Raises when the worker is gone."""


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
        adapters: AdapterOptions = NO_ADAPTERS,
        transfer: TransferOptions = NO_TRANSFER,
        drain_timeout: float = 0.0,
        media_memory: float = inf,
    ) -> None:
        """send: takes (frontend, message) and returns at once. clock: seconds; that of Received.at.

        heartbeat: called in each turn of the loop and while it waits: proves that the loop is alive.
        ahead: a step is planned while the one before it runs; else when its result has been taken in.
        bounds: how much may wait. adapters: from where they may be loaded, and how much memory they take.
        transfer: how blocks move to and from other cores. drain_timeout: seconds; see Drain. media_memory:
        bytes of the media of requests in flight.
        """
        identity.welcome.transfer_namespace = transfer.namespace(scheduler.prefix_cache.secret)
        context = CoreContext(identity, scheduler, send, clock)
        self.scheduler = scheduler
        self.counters = context.counters
        self.intake = Intake(context, bounds, media_memory)
        self._context = context
        self._worker = worker
        self.adapters = AdapterMemory(scheduler, worker, adapters.sources, adapters.capacity, adapters.held)
        self.transfer = KvTransfer(context, worker, transfer)
        supplies = Grammars(scheduler, worker), self.adapters, self.transfer.pulls
        self._preparation = Preparation(scheduler, supplies, self._refuse)
        self.adapter_names = AdapterNames(
            self.adapters, identity.limits.adapters_caveat, self._announce_adapters, identity.epoch
        )
        self._frontends = FrontendMessages(
            context, self.intake, self._preparation, self.adapter_names, self.transfer.leases
        )
        self._drain = Drain(context, self._frontends.directory, self.transfer.leases, drain_timeout)
        self._inbox = inbox
        self._clock = clock
        self._heartbeat = heartbeat
        worker.on_wait = self._while_waiting
        self._ahead = ahead
        self._pace = Pace()
        self._next_idle_check = 0.0

    @property
    def epoch(self) -> int:
        """Number of this start of the core."""
        return self._context.identity.epoch

    def run(self) -> NoReturn:
        """Steps until an exception: a failure, or the request to stop."""
        while True:
            self.step()

    def step(self) -> None:
        """Events, schedule, submit; then a result, update, outputs. Waits for an event when idle.

        Waits for a result when the worker has enough to do, or when nothing can be planned without it.
        """
        self._heartbeat()
        if delay := self._pace.delay(self._clock(), self.scheduler.most_ahead) or self._idle_sleep():
            self._worker.await_result(delay)
        self.intake.exchange_quotas()
        self._take_events()
        self._frontends.detached.review()
        self._frontends.utilities.advance()
        self.adapter_names.take_downloads()
        self._preparation.review()
        self.adapter_names.review()
        now = self._clock()
        self._drain.review(now)
        self.transfer.leases.review(now)
        plan = self.scheduler.schedule(now)
        self._publish(only_finishes=True)
        self._report_faults()
        if plan.rows:
            self._worker.submit(plan)
            self.counters.step_planned(plan)
            self._pace.sent(plan, now, self._clock())
        if self.scheduler.in_flight and not plan.rows:
            self._take_result()
        most_under_way = 1 + self.scheduler.most_ahead if self._ahead else 1
        while len(self.scheduler.in_flight) >= most_under_way:
            self._take_result()
        self._frontends.cache_watches.publish()

    def fail_all(self, reason: str, message: str) -> None:
        """Fails every request in flight, and those that have just arrived."""
        self.scheduler.quarantine.leave()
        for request in list(self.scheduler.requests):
            self._frontends.fail(request, Code.UNAVAILABLE, reason, message)
        for event in self._inbox.take():
            if isinstance(event, Received) and event.message.HasField("add_request"):
                handle = event.message.add_request.handle
                self._context.fail(event.frontend, handle, Code.UNAVAILABLE, reason, message)

    def load_adapters(self, wanted: Iterable[NamedAdapter]) -> None:
        """Loads and pins adapters before anything is served. Raises StartupError."""
        for adapter in wanted:
            answers: list[AdapterResult] = []
            self.adapter_names.load(adapter, answers.append)
            while not answers:
                self._preparation.review()
                self._worker.await_result(IDLE_SLEEP_S)
                self._heartbeat()
            if problem := answers[0].problem:
                raise StartupError(
                    "cannot load an adapter",
                    f"--lora {adapter.name}: {problem}",
                    "correct it, or leave it out",
                )

    def _idle_sleep(self) -> float:
        if self._has_asides and not (self.scheduler.requests or self.scheduler.in_flight):
            return IDLE_SLEEP_S
        return self.scheduler.idle_sleep

    @property
    def _has_asides(self) -> bool:
        """Whether something beside requests needs the loop."""
        changes = self.adapters.is_loading or self.adapter_names.is_changing
        return changes or self.transfer.is_active or self._drain.has_begun

    def _refuse(self, request: Request, refusal: Refused) -> None:
        self.scheduler.abort(request)
        self._context.refuse(request.frontend, request.handle, refusal)

    def _announce_adapters(self, table: AdapterTable) -> None:
        for frontend in self._frontends.directory.identities:
            self._context.send(frontend, EngineMessage(adapters=table))

    # Events.

    def _take_events(self) -> None:
        """Handles events. Waits only when no request, plan or answer is in flight."""
        is_busy = self.scheduler.requests or self.scheduler.in_flight or self._frontends.utilities
        if not (is_busy or self._has_asides or self._inbox):
            self._check_when_idle()
            self.counters.idle()
            self._worker.wait_for(self._inbox)
        for event in self._inbox.take():
            self._handle(event)

    def _handle(self, event: Event) -> None:
        if isinstance(event, Received):
            self._frontends.handle(event)
        elif isinstance(event, FrontendGone):
            self._frontends.lose(event.frontend)
        elif isinstance(event, HealthProbe):
            event.answer(True)
        elif isinstance(event, DrainRequested):
            self._drain.begin()
        else:
            assert isinstance(event, SocketsFailed)
            raise RuntimeError("the thread of the frontends' socket has ended") from event.error

    def _while_waiting(self) -> None:
        """Answers heartbeats during a step, which may take longer than their timeout. Other events wait."""
        self._heartbeat()
        for event in self._inbox.take_if(self._is_heartbeat):
            self._handle(event)

    def _is_heartbeat(self, event: Event) -> bool:
        return (
            isinstance(event, Received)
            and event.message.HasField("hello")
            and event.message.hello.known_epoch == self.epoch
        )

    # Results and outputs.

    def _take_result(self) -> None:
        if self.scheduler.in_flight[0].plan.sample_counts:
            self._worker.await_burst(self._inbox)
        result = self._worker.collect()
        self._pace.ended(result, self._clock(), self.scheduler.most_ahead)
        self.counters.step_done(result)
        failed = self.scheduler.update(result)
        self.counters.output_rate.add(len(result.token_ids), self._clock())
        self._publish()
        for request in failed:
            self._context.fail(request.frontend, request.handle, *no_token_error(request))
        self._report_faults()

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
        keep_scores(outputs)
        for frontend, message in encode_outputs(outputs, self.epoch, self.scheduler.step):
            self._context.send(frontend, EngineMessage(step_outputs=message))

    def _report_faults(self) -> None:
        for request in self.scheduler.faults.take() if self.scheduler.faults else ():
            self.counters.internal_errors += 1
            self._context.fail(request.frontend, request.handle, *BUG)

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
