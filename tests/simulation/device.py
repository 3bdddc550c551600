"""A worker in the same process: the simulated runner with real rows, and its time.

In place of engine_core.io.worker_group.WorkerGroup. A plan is computed as soon as it comes, since nothing but
the plans before it decides what it gives; its result is handed out when the device would have it.
"""

from collections import deque
from collections.abc import Callable
from random import Random

from engine_core.io.inbox import Inbox
from engine_core.io.worker_process import WorkerDied
from engine_core.request import NO_TOKEN
from engine_core.startup import initialize_message
from engine_core.step.plan import Plan, encode_plan
from engine_core.step.result import Result, decode_result
from pagewire.config import EngineConfig, WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from tests.simulation.machine import Killed, Processor
from tests.simulation.memory import TaggedMemory
from tests.simulation.poison import Poisons
from tests.simulation.workload import Workload
from worker.simulated.clock import Clock
from worker.simulated.load import load

LOOK_S = 0.25
MAX_UNDER_WAY = 2
"""Plans without a result: the contract of running one step ahead."""


class Device:
    """The worker's process, and the line to it."""

    def __init__(
        self, machine: Processor, config: EngineConfig, workload: Workload, random: Random, poisons: Poisons
    ) -> None:
        """Loads."""
        self._poisons = poisons
        self._machine, self._random, self._workload = machine, random, workload
        self._hop = workload.settings.worker_hop
        self._arrival = self._left_s = 0.0  # of the plan at hand; until its end
        clock = Clock(now=lambda: self._arrival, sleep=self._pass)
        faults = WorkerConfig(fault_slow_factor=workload.settings.slow_factor)
        self._runner, self.ready = load(initialize_message(config), faults, clock)
        if workload.settings.swap_costs is not None:
            self.ready.prefill_us_per_token, self.ready.swap_us_per_block = workload.settings.swap_costs
        self._memory = TaggedMemory(self._runner.rows, self.ready.num_host_blocks, workload.namespace)
        self.under_way: deque[tuple[float, Plan, worker_pb2.StepResult]] = deque()  # and when it arrives
        self._compiling: list[tuple[float, int]] = []  # grammars, and when they are compiled
        self.dies = False  # in the step that comes next
        self._death: float | None = None
        self._kills_core = False  # so that its own death is not noticed
        self.on_wait: Callable[[], None] = lambda: None

    def submit(self, plan: Plan) -> None:
        """See engine_core.core.Worker."""
        if self._death is not None:
            return  # the sender does not know yet
        assert len(self.under_way) < MAX_UNDER_WAY, "too many plans are under way"
        self._arrival = max(self._arrival, self._machine.loop.time() + self._hop * self._random.random())
        result = self._execute(encode_plan(plan))
        end = self._arrival + self._left_s
        work = zip(plan.rows, plan.starts, plan.counts, strict=True)
        self._machine.trace("core", "plans", plan.step, "rows", *work)
        victim = self._poisons.strike(plan)
        if self.dies or victim:
            self._kills_core = victim == "core"
            self._death = end - 1e-6 * result.duration_us * self._random.random()
            return
        self.under_way.append((end + self._hop * self._random.random(), plan, result))

    def compile_grammar(self, number: int, grammar: str) -> None:
        """See engine_core.core.Worker."""
        delay = 2 * self._hop * self._random.random() + 0.02 * self._random.random() ** 3
        self._compiling.append((self._machine.loop.time() + delay, number))

    def take_compiled(self) -> list[int]:
        """See engine_core.core.Worker."""
        now = self._machine.loop.time()
        compiled = [number for at, number in self._compiling if at <= now]
        self._compiling = [(at, number) for at, number in self._compiling if at > now]
        return compiled

    def collect(self) -> Result:
        """See engine_core.core.Worker."""
        if not self.under_way:
            assert self._death is not None, "nothing was submitted"
            self._wait(self._death)
            if self._kills_core:
                raise Killed
            raise WorkerDied("the worker is gone", "the simulation wants it so")
        arrives, plan, message = self.under_way.popleft()
        self._wait(arrives)
        return decode_result(message, plan)

    def await_result(self, seconds: float) -> None:
        """See engine_core.core.Worker."""
        until = self._machine.loop.time() + seconds
        if self.under_way:
            self._wait(min(until, self.under_way[0][0]))
        elif self._death is not None and self._death <= until:
            self.collect()
        else:
            self._wait(until)

    def wait_for(self, inbox: Inbox) -> None:
        """See engine_core.core.Worker."""
        assert not self.under_way, "the core waits for events, but not for its result"
        self._machine.wait_for_events(inbox)

    def _wait(self, until: float) -> None:
        """As a worker's link does: with looks at frontends that ask whether the core lives."""
        while (now := self._machine.loop.time()) + LOOK_S < until:
            self._machine.wait(now + LOOK_S)
            self.on_wait()
        self._machine.wait(until)

    def _execute(self, message: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        self._left_s = 0.0
        result = self._runner.execute(message)
        self._memory.execute(message)
        if self._workload.settings.nan_rate and self._random.random() < self._workload.settings.nan_rate:
            self._break_one_token(result)
        return result

    def _break_one_token(self, result: worker_pb2.StepResult) -> None:
        """A row has no logits to choose from, as when a model's numbers overflow."""
        token_ids = unpack_u32(result.token_ids)
        if token_ids:
            token_ids[self._random.randrange(len(token_ids))] = NO_TOKEN
            result.token_ids = pack_u32(token_ids)

    def _pass(self, seconds: float) -> None:
        self._left_s = seconds
