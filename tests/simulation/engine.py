"""The engine core's process, life after life. In a simulation it is a fiber."""

from collections import Counter
from math import inf
from random import Random
from typing import Any, cast

from engine_core.core import EngineCore
from engine_core.frontends.messages import FrontendMessages
from engine_core.io.inbox import Inbox, Received
from engine_core.io.stop_signal import Stopped
from engine_core.io.worker_process import WorkerDied
from engine_core.quarantine.crash_journal import CrashJournal, next_journal
from engine_core.request import Status
from engine_core.scheduler.scheduler import Scheduler
from engine_core.startup import check_config, make_identity, make_scheduler
from pagewire.internal.v1.engine_pb2 import Abort, AddRequest, EngineMessage
from tests.simulation.clock import EPOCH_S
from tests.simulation.device import Device
from tests.simulation.machine import Killed, Machine
from tests.simulation.network import Network
from tests.simulation.poison import Poisons
from tests.simulation.recorded import RecordedLife
from tests.simulation.workload import Workload


class CheckedCore(EngineCore):
    """The core; after every step its books are checked, and whether a request waits while nothing runs."""

    def __init__(self, device: Device, *arguments: Any, **options: Any) -> None:
        """The other arguments are those of EngineCore."""
        super().__init__(*arguments, **options)
        self.findings: list[str] = []  # from where the core must not raise
        messages = CheckedMessages(self._frontends, self.scheduler, self.findings)
        self._frontends = cast(FrontendMessages, messages)
        self._device = device
        self.most_preemptions = 0  # of one request
        self._num_idle_steps = 0  # one after another

    def step(self) -> None:
        before, began = self.scheduler.step, self._clock()
        super().step()
        self.scheduler.check_invariants()
        for request in self.scheduler.requests:
            times = [when for when in (request.time_limit_at, request.abort_at) if when is not None]
            assert min(times, default=began) >= began, "a request outlives its time"
            self.most_preemptions = max(self.most_preemptions, request.num_preemptions)
        idles = self.scheduler.step == before and not self._device.under_way and self.scheduler.requests
        idles = idles and not self.scheduler.idle_sleep
        self._num_idle_steps = self._num_idle_steps + 1 if idles else 0
        assert self._num_idle_steps <= 1, "requests wait while the device idles"
        assert not self.findings, self.findings
        counters = self.counters
        assert not counters.internal_errors, "a message made the core raise"
        assert not counters.bad_messages, "a frontend sent what it must not"
        assert not counters.broken_invariants, "the books of an idle core do not balance"


class CheckedMessages:
    """FrontendMessages; what was aborted, or is of a lost frontend, has to end."""

    def __init__(self, messages: FrontendMessages, scheduler: Scheduler, findings: list[str]) -> None:
        """findings: what is wrong, from where the core must not raise."""
        self.fail = messages.fail
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
    """Starts a core and its worker, steps, dies, starts again."""

    def __init__(
        self, machine: Machine, network: Network, workload: Workload, random: Random, place: int
    ) -> None:
        """place: among several."""
        self.core: CheckedCore | None = None
        self.device: Device | None = None
        self.num_lives = self.num_steps = self.num_preemptions = 0  # over all lives
        self.most_preemptions = 0
        self._name = f"core-{place}"
        self._machine, self._network = machine.processor(self._run), network
        self._workload, self._random = workload, random
        self._recordings: list[RecordedLife] = []
        self._notes = bytearray()  # what is on disk
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
        """SIGKILL: nothing of it is left."""
        if self.core is not None:
            self._machine.is_killed = True

    def _run(self) -> None:
        """Until the simulation is over and the core idle."""
        check_config(self._workload.config)
        while True:
            self.num_lives += 1
            try:
                self._live()
            except Stopped:
                self._network.core_dies()
                return
            except (Killed, WorkerDied) as death:
                self._machine.trace(self._name, "dies", type(death).__name__)
            self._network.core_dies()
            self.core = self.device = None
            self._machine.is_killed = False
            self._wait(self._workload.settings.restart)

    def _live(self) -> None:
        config = self._workload.config
        inbox, recording = Inbox(), RecordedLife() if config.record else None
        try:
            self._network.listen(inbox)  # frontends may come before the worker has loaded
            self._wait(self._workload.settings.restart)
            self.device = Device(self._machine, config, self._workload, self._random, self._poisons())
            start_ns = round(1e9 * (EPOCH_S + self._machine.loop.time()))
            identity = make_identity(config, self.device.ready, start_ns)
            scheduler = make_scheduler(config, self.device.ready, recording.writer if recording else None)
            self._notes = next_journal(bytes(self._notes), scheduler.num_rows)
            scheduler.open(CrashJournal(self._notes))
            clock = self._machine.loop.time
            ahead = config.scheduling == "ahead"
            parts = identity, scheduler, self.device, inbox, self._send, clock
            self.core = CheckedCore(self.device, *parts, ahead=ahead)
            self._machine.trace(self._name, "is ready, life", self.num_lives)
            self._brew(self.device)
            self._step()
        finally:
            inbox.close()
            if recording is not None:
                recording.close()
                self._recordings.append(recording)

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
                self._wait(overhead)
        except WorkerDied:
            self.core.fail_all("ENGINE_DEAD", "the engine has died")  # as engine_core.main does
            raise

    def _brew(self, device: Device) -> None:
        """In a storm, the death of this life."""
        storm = self._workload.storm
        if storm is not None and self.num_lives <= storm.kills:
            after, is_worker = storm.life * self._random.expovariate(1.0), self._random.random() < 0.5

            def strike() -> None:
                if self.device is device:  # an idle core would miss its worker at once, not with a step
                    device.dies = is_worker and bool(device.under_way)
                    self._machine.is_killed = not device.dies

            self._machine.loop.call_later(after, strike)

    def _poisons(self) -> Poisons:
        by_seed = {job.request.sampling.seed: job.poison for job in self._workload.jobs if job.poison}
        return Poisons(by_seed, self._random, self.poison_deaths)

    def _wait(self, longest: float) -> None:
        self._machine.wait(self._machine.loop.time() + longest * self._random.random())

    def _send(self, frontend: bytes, message: EngineMessage) -> None:
        name = self._network.name(frontend)
        self._machine.trace(self._name, "sends", message.WhichOneof("message"), "to", name)
        self._network.send(frontend, message)
