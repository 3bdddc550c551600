"""The engine core's process, life after life. In a simulation it is a fiber."""

import contextlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

from engine_core.adapters.sources import NO_ADAPTERS
from engine_core.core import EngineCore
from engine_core.frontend_messages import FrontendMessages
from engine_core.io.inbox import DrainRequested, Inbox, Received
from engine_core.io.process_control import ParentOrders, Stopped, StopSignal
from engine_core.io.worker_group import WorkerGroup
from engine_core.io.worker_process import WorkerDied
from engine_core.kv_cache.hash_key import hash_secret
from engine_core.kv_transfer.pulls import NO_TRANSFER
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.request import Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.startup import (
    adapter_options,
    check_config,
    initialize_message,
    make_identity,
    make_scheduler,
    pinned_adapters,
    transfer_options,
)
from engine_core.worker_supply import Process, WorkerSupply
from pagewire.host.spawn import Heartbeat, KeptWorkers
from pagewire.internal.v1.engine_pb2 import Abort, AddRequest, EngineMessage
from tests.simulation.clock import EPOCH_S
from tests.simulation.host import Host, SimulatedStatus
from tests.simulation.machine import Killed, Machine
from tests.simulation.moves import Moves, SimulatedPeers
from tests.simulation.network import Network
from tests.simulation.poison import Poisons
from tests.simulation.recorded import RecordedLife
from tests.simulation.workload import STEP_S, Workload

T = TypeVar("T")


class CheckedCore(EngineCore):
    """The core; after every step its books are checked, and whether a request waits while nothing runs."""

    def __init__(self, workers: WorkerGroup, *arguments: Any, **options: Any) -> None:
        """The other arguments are those of EngineCore."""
        super().__init__(*arguments, **options)
        self.findings: list[str] = []  # from where the core must not raise
        messages = CheckedMessages(self._frontends, self.scheduler, self.findings)
        self._frontends = cast(FrontendMessages, messages)
        self._workers = workers
        self.most_preemptions = 0  # of one request
        self._num_idle_steps = 0  # one after another

    def step(self) -> None:
        before, began = self.scheduler.step, self._clock()
        super().step()
        self.scheduler.check_invariants()
        for request in self.scheduler.requests:
            times = [when for when in (request.time_limit_at, request.owner.abort_at) if when is not None]
            assert min(times, default=began) >= began, "a request outlives its time"
            self.most_preemptions = max(self.most_preemptions, request.num_preemptions)
        idles = self.scheduler.step == before and not self._workers._submitted and self.scheduler.requests
        idles = idles and not self.scheduler.idle_sleep
        self._num_idle_steps = self._num_idle_steps + 1 if idles else 0
        assert self._num_idle_steps <= 1, "requests wait while the device idles"
        assert not self.findings, self.findings
        assert self.adapters.num_bytes <= self.adapters.capacity, "too many adapters"
        counters = self.counters
        assert not counters.internal_errors, "a message made the core raise"
        assert not counters.bad_messages, "a frontend sent what it must not"
        assert not counters.broken_invariants, "the books of an idle core do not balance"


class CheckedMessages:
    """FrontendMessages; what was aborted, or is of a lost frontend, has to end."""

    def __init__(self, messages: FrontendMessages, scheduler: Scheduler, findings: list[str]) -> None:
        """findings: what is wrong, from where the core must not raise."""
        self.fail = messages.fail
        self.detached, self.utilities = messages.detached, messages.utilities
        self.cache_watches, self.directory = messages.cache_watches, messages.directory
        self._messages, self._scheduler, self._findings = messages, scheduler, findings
        self._aborted: dict[str, float] = {}  # when, by id

    def handle(self, event: Received) -> None:
        """See FrontendMessages."""
        kind, message = event.message.WhichOneof("message"), event.message
        if kind == "utility":
            self._aborted |= dict.fromkeys(message.utility.abort_by_ids.request_ids, event.at)
        self._messages.handle(event)
        if kind == "abort":
            self._check_abort(event.frontend, message.abort)
        elif kind == "add_request":
            self._check_request(event.frontend, message.add_request, event.at)

    def lose(self, frontend: bytes) -> None:
        """See FrontendMessages."""
        self._messages.lose(frontend)
        if self._scheduler.requests.of_frontend(frontend):
            self._findings.append("requests of a lost frontend go on")

    def _check_abort(self, frontend: bytes, message: Abort) -> None:
        request = self._scheduler.requests.by_handle(frontend, message.handle)
        going_on = request.sequences if request else []
        named = [
            sequence for sequence in going_on if sequence.index in message.indexes or not message.indexes
        ]
        if any(sequence.status is not Status.ENDED for sequence in named):
            self._findings.append("what was aborted goes on")

    def _check_request(self, frontend: bytes, message: AddRequest, arrival: float) -> None:
        began, aborted = arrival - 1e-6 * message.age_us, self._aborted.get(message.request_id, -inf)
        if aborted >= began and self._scheduler.requests.by_handle(frontend, message.handle):
            self._findings.append("what was aborted on its way goes on")


class Engine:
    """Starts a core, which starts a worker or adopts one, steps, dies, starts again."""

    def __init__(
        self,
        machine: Machine,
        network: Network,
        workload: Workload,
        random: Random,
        place: int,
        moves: Moves | None = None,
    ) -> None:
        """place: among several. moves: how blocks get from one to another; None: they do not."""
        self.core: CheckedCore | None = None
        self.ready_at = 0.0  # of the life of now, or the last one
        self.num_lives = self.num_steps = self.num_preemptions = 0  # over all lives
        self.most_preemptions = 0
        self.num_adoptions = self.num_adopted_blocks = self.num_adopted_states = 0
        self._name, self._place, self._moves = f"core-{place}", place, moves
        self.pulls: Counter[str] = Counter()  # by outcome, over all lives
        self._machine, self._network = machine.processor(self._run), network
        self._workload, self._random = workload, random
        self._fate = Random(f"succession {workload.seed} {place}")
        self._host = Host(
            *(machine, self._machine, workload, Random(f"host {workload.seed} {place}"), self._poisons),
            *(place, moves),
        )
        self._status = SimulatedStatus(self._host)
        self._recordings: list[RecordedLife] = []
        self._notes = bytearray()  # what is on disk
        self._deaths = Path(workload.config.lora_folder + f" {place}.json")  # in loads of adapters
        self.poison_deaths = Counter[int]()

    def check_recordings(self) -> None:
        """Tells what has happened to other schedulers. Raises AssertionError."""
        for recording in self._recordings:
            self._machine.trace("replay", recording.check(), "plans")

    def close(self) -> None:
        """Closes the recordings at the end of a simulation."""
        for recording in self._recordings:
            recording.discard()

    def kill(self) -> None:
        """SIGKILL, in most cases: nothing of it is left but its worker. Or it is told to end."""
        if not self._host.is_up:
            return
        if self._fate.random() < 0.25:
            self._host.is_stopped = True
        else:
            self._machine.is_killed = self._host.was_killed = True

    def drain(self) -> None:
        """SIGTERM, with --drain-timeout."""
        if not self._host.is_up:
            return
        if self.core is None:
            self._host.is_stopped = True
        elif not self._host.is_draining:
            self._host.is_draining = True
            self._host.inbox.put(DrainRequested())

    def kill_now(self) -> None:
        """SIGKILL."""
        if self._host.is_up:
            self._machine.is_killed = self._host.was_killed = True

    def kill_worker_now(self) -> None:
        """Kills a worker wherever it is."""
        workers = [worker for worker in self._host.workers.values() if worker.device is not None]
        if workers:
            self._host.was_killed = True
            self._one_of(workers).kill()

    def kill_worker(self) -> None:
        """Kills it, or one rank of it, in its next step."""
        workers = [worker for worker in self._host.workers.values() if worker.device is not None]
        if workers:
            device = self._one_of(workers).device
            assert device is not None
            device.dies = True

    def _one_of(self, choices: Sequence[T]) -> T:
        return choices[0] if len(choices) == 1 else self._fate.choice(choices)

    def _run(self) -> None:
        """Until the simulation is over and the core idle."""
        check_config(self._workload.config)
        kept: KeptWorkers | None = None
        while True:
            self.num_lives += 1
            outlives = True
            try:
                self._live(kept)
            except Stopped:
                if not (self._host.is_stopped or self._host.is_draining):
                    self._check_adapters()
                    self._network.core_dies()
                    self._host.end_all()
                    return
                self._machine.trace(self._name, "ends")
                self._notes = bytearray()  # no request is suspected after a clean end, nor an adapter
                if self._workload.adapters is not None:
                    self._deaths.unlink(missing_ok=True)
            except (Killed, WorkerDied) as death:
                self._machine.trace(self._name, "dies", type(death).__name__)
                outlives = isinstance(death, Killed)
            self._network.core_dies()
            kept = self._bury(outlives)

    def _check_adapters(self) -> None:
        """Checks that core and worker agree on what is loaded."""
        assert self.core is not None
        for worker in self._host.workers.values():
            held = {each.digest for each in worker.device._executor.held_adapters} if worker.device else set()
            assert held == {*self.core.adapters._loaded}, "an adapter is forgotten"

    def _bury(self, outlives: bool) -> KeptWorkers | None:
        """Does what the supervisor does with the workers of a core that has ended, and waits for its pause.
        Returns those that the next core may adopt. outlives: the core was killed, or told to end."""
        host, settings = self._host, self._workload.settings
        if self.core is None or not outlives or not settings.adopts:
            host.end_all()
        self.core = None
        self._machine.is_killed = host.is_stopped = host.is_up = host.is_draining = False
        self._wait(settings.restart)
        kept = host.kept()
        if kept is None:
            host.end_all()
        elif self._fate.random() < 0.15:
            delay = settings.restart * self._fate.random()
            host.loop.call_later(delay, host.workers[self._one_of(kept.pids)].kill)
        return kept

    def _live(self, kept: KeptWorkers | None) -> None:
        config = self._workload.config
        inbox, recording = Inbox(), RecordedLife() if config.record else None
        self._host.inbox, self._host.is_up = inbox, True
        try:
            with contextlib.ExitStack() as stack:
                self._network.listen(inbox)  # frontends may come before the worker has loaded
                self._wait(self._workload.settings.restart)
                self._serve(inbox, recording, kept, stack)
        finally:
            inbox.close()
            if self.core is not None:
                self.pulls.update(self.core.counters.kv_pulls)
            if recording is not None:
                recording.close()
                if self.core is None:  # it did not get so far
                    recording.discard()
                else:
                    self._recordings.append(recording)

    def _serve(
        self,
        inbox: Inbox,
        recording: RecordedLife | None,
        kept: KeptWorkers | None,
        stack: contextlib.ExitStack,
    ) -> None:
        """As engine_core.main does."""
        config, clock = self._workload.config, self._machine.loop.time
        if self._workload.moving is not None and self._workload.moving.roles:
            config = replace(config, role=self._workload.moving.roles[self._place])
        process = Process(cast(StopSignal, None), Heartbeat(lambda: None), cast(Any, self._host), None)
        supply = WorkerSupply(config, process, self._status, stack)
        supply._orders = cast(ParentOrders, self._status)
        initialize = initialize_message(config)
        workers, ready = supply.load(initialize, kept)
        identity = make_identity(config, ready, round(1e9 * (EPOCH_S + clock())))
        scheduler = make_scheduler(config, ready, recording.writer if recording else None)
        scheduler.prefix_cache.secret = hash_secret(initialize, ready)
        scheduler.track_cache(workers.track_cache(), ready.kept_cache)
        storm = self._workload.storm
        if storm is not None and storm.life_steps:
            self._notes = bytearray()
        self._notes = next_journal(
            bytes(self._notes),
            scheduler.num_rows,
            killed=self._host.was_killed,
            num_steps=1 + max(1, ready.stages),
        )
        self._host.was_killed = False
        scheduler.open(CrashJournal(self._notes))
        parts = identity, scheduler, workers, inbox, self._send, clock
        adapters = adapter_options(config, ready, self._deaths) if config.lora_folder else NO_ADAPTERS
        transfer = NO_TRANSFER
        if self._moves is not None:
            peers = SimulatedPeers(self._moves, self._place)
            stack.callback(peers.close_all)
            transfer = transfer_options(config, ready, peers)
        moving = {"transfer": transfer, "drain_timeout": config.drain_timeout}
        is_ahead = config.scheduling == "ahead"
        self.ready_at = self._machine.loop.time()  # before there is a core: loading adapters takes a moment
        self.core = CheckedCore(workers, *parts, ahead=is_ahead, adapters=adapters, **moving)
        self.core.load_adapters(pinned_adapters(config))
        self.core.scheduler.check_invariants()
        adopted = ready.HasField("kept_cache")
        self.num_adoptions += adopted
        self.num_adopted_blocks += scheduler.prefix_cache.num_blocks
        self.num_adopted_states += scheduler.prefix_cache.num_checkpoints
        self._machine.trace(self._name, "is ready, life", self.num_lives, "adopted", adopted)
        self._brew(workers)
        if adopted and self._fate.random() < 0.3:
            few_steps = 30 * self._workload.settings.slow_factor * STEP_S * self._fate.random() ** 2
            self._host.strike_core(clock() + few_steps, is_signal=True)
        self._step()

    def _step(self) -> None:
        assert self.core is not None
        overhead = self._workload.settings.core_overhead
        try:
            while True:
                before = self.core.scheduler.step, self.core.scheduler.num_preemptions
                self.core.step()
                self.num_steps += self.core.scheduler.step - before[0]
                self.most_preemptions = max(self.most_preemptions, self.core.most_preemptions)
                self.num_preemptions += self.core.scheduler.num_preemptions - before[1]
                if self.core.scheduler.step >= self._last_step:
                    self._end_soon()
                self._wait(overhead)
        except WorkerDied:
            self.core.fail_all("ENGINE_DEAD", "the engine has died")  # as engine_core.main does
            raise

    def _brew(self, workers: WorkerGroup) -> None:
        """In a storm, the death of this life."""
        storm = self._workload.storm
        self._last_step = inf
        if storm is not None and self.num_lives <= storm.kills and storm.life_steps:
            self._last_step = 1 + int(storm.life_steps * self._fate.expovariate(1.0))
        elif storm is not None and self.num_lives <= storm.kills:
            after, is_worker = storm.life * self._random.expovariate(1.0), self._random.random() < 0.5
            life = self.num_lives

            def strike() -> None:
                if self.num_lives != life or not self._host.is_up:
                    return
                if is_worker and workers._submitted:  # an idle core would miss it at once, not with a step
                    self.kill_worker()
                else:
                    self._machine.is_killed = self._host.was_killed = True

            self._machine.loop.call_later(after, strike)

    def _end_soon(self) -> None:
        """The last of this life's steps has begun."""
        self._last_step, life = inf, self.num_lives
        step = self._workload.settings.slow_factor * STEP_S

        def strike() -> None:
            if self.num_lives == life and self._fate.random() < 0.9:
                self.kill()
            elif self.num_lives == life:
                self.kill_worker()

        self._machine.loop.call_later(2 * step * self._fate.random(), strike)

    def _poisons(self) -> Poisons:
        by_seed = {job.request.sampling.seed: job.poison for job in self._workload.jobs if job.poison}
        return Poisons(by_seed, self._random, self.poison_deaths)

    def _wait(self, longest: float) -> None:
        self._machine.wait(self._machine.loop.time() + longest * self._random.random())

    def _send(self, frontend: bytes, message: EngineMessage) -> None:
        name = self._network.name(frontend)
        self._machine.trace(self._name, "sends", message.WhichOneof("message"), "to", name)
        self._network.send(frontend, message)
