"""What a simulated worker computes with: the simulated runner with real rows, and with a memory that shows
whose tokens lie where.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import inf
from pathlib import Path
from random import Random

from engine_core.request import NO_TOKEN
from pagewire.config import WorkerConfig
from pagewire.internal.v1 import worker_pb2
from pagewire.ipc.columns import pack_u32, unpack_u32
from pagewire_simulated.adapters import read_adapter
from pagewire_simulated.clock import Clock
from pagewire_simulated.platform import SimulatedPlatform
from tests.simulation.adapters import Adapters
from tests.simulation.machine import Processor
from tests.simulation.memory import TaggedMemory
from tests.simulation.moves import VirtualTransfer
from tests.simulation.poison import Poisons
from tests.simulation.ranks import VirtualRanks
from tests.simulation.workload import Workload
from worker.load import load
from worker.platforms.base import Report

MAX_AHEAD = 1
"""Plans without a result beyond one for each stage: the contract of running ahead."""


@dataclass(frozen=True)
class Compiled:
    """A grammar that is being compiled. A worker.loop.Compilation."""

    at: float
    clock: Callable[[], float]

    def done(self) -> bool:
        """See Compilation."""
        return self.clock() >= self.at


class _Joined(SimulatedPlatform):
    """Of a rank that has joined its group: see tests.simulation.ranks."""

    def join(self, initialize: worker_pb2.Initialize, report: Report) -> None:
        """See SimulatedPlatform."""


class Device:
    """A worker.loop.StepRunner, and what goes wrong in its steps."""

    def __init__(
        self,
        processor: Processor,
        initialize: worker_pb2.Initialize,
        workload: Workload,
        random: Random,
        poisons: Poisons,
        strike: Callable[[float, str], None],
    ) -> None:
        """Loads. strike: a request kills "worker" or "core" at some time, in a step; "": the worker dies
        from outside."""
        self._loop, self.trace, self._processor = processor.loop, processor.trace, processor
        self._poisons, self._random, self._workload, self._strike = poisons, random, workload, strike
        settings = workload.settings
        clock = Clock(self._loop.time, lambda seconds: processor.wait(self._loop.time() + seconds))
        faults = WorkerConfig(fault_slow_factor=settings.slow_factor)
        self._executor, self.ready = load(initialize, _Joined(faults, clock))
        if settings.swap_costs is not None:
            self.ready.prefill_us_per_token, self.ready.swap_us_per_block = settings.swap_costs
        if settings.has_states:
            self.ready.has_states = True
            self.ready.num_state_checkpoints = initialize.state_checkpoints
        if workload.images is not None and workload.images.whole:
            self.ready.model.whole_media = self._executor.backend.images.whole = True
        self.memory = TaggedMemory(
            self._executor.rows, self.ready.num_host_blocks, workload.namespace, settings.has_states
        )
        self.ranks: VirtualRanks | None = None
        """Those of a group that this is one of."""
        self.transfer: VirtualTransfer | None = None
        self.dies = False  # in the step that comes next
        self._is_struck = False  # by a step that was launched
        self._loading: list[Future[worker_pb2.AdapterLoaded]] = []

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool]) -> None:
        """See StepRunner."""
        most_under_way = MAX_AHEAD + max(1, self.ready.stages)
        assert len(self._executor._pending) < most_under_way, "too many plans are under way"
        if self.ranks is not None:
            self.ranks.compute(plan.step)
        self._executor.launch(plan, lambda: is_interrupted() or self._interrupts())
        self._check_encoder(plan)
        self.memory.execute(plan)
        work = zip(*(unpack_u32(column) for column in (plan.rows, plan.starts, plan.counts)), strict=True)
        self.trace("worker", "launches", plan.step, "rows", *work)
        if self._is_struck:
            return
        victim = self._poisons.strike(plan)
        if self.dies or victim:
            self._is_struck, now = True, self._loop.time()
            left = self._executor.backend.seconds_until(self._executor.backend._busy_until)
            self._strike(now + left * self._random.random(), "" if self.dies else victim)

    def _check_encoder(self, plan: worker_pb2.StepPlan) -> None:
        images, config = self._executor.backend.images, self._workload.config
        room, budget = config.encoder_cache_tokens, config.max_num_encoder_tokens
        assert sum(images.kept.values()) <= room or self._workload.images is None, "too many vectors are kept"
        assert images.num_encoded <= budget or len(plan.encode) <= 1, "too many vectors in a step"

    def _interrupts(self) -> bool:
        """Whether a burst ends here; with other ranks, they agree on that."""
        return self.ranks is None and self._random.random() < 0.1

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        """See StepRunner."""
        return self._executor.awaits(plan)

    def seconds_left(self) -> float | None:
        """See StepRunner."""
        return self._executor.seconds_left()

    def finish(self) -> worker_pb2.StepResult:
        """See StepRunner."""
        result = self._executor.finish()
        self.memory.finished()
        if self._workload.settings.nan_rate and self._random.random() < self._workload.settings.nan_rate:
            self._break_one_token(result)
        return result

    def compile_grammar(self, grammar: str) -> Compiled:
        """See StepRunner."""
        hop = self._workload.settings.worker_hop
        delay = 2 * hop * self._random.random() + 0.02 * self._random.random() ** 3
        return Compiled(self._loop.time() + delay, self._loop.time)

    def load_adapter(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        """See StepRunner."""
        adapters, answer = self._workload.adapters, Future[worker_pb2.AdapterLoaded]()
        assert adapters is not None
        self._loading.append(answer)
        delay = adapters.longest_load * self._random.random() ** 2
        self._loop.call_later(delay, self._load, order, answer, adapters)
        return answer

    def _load(
        self,
        order: worker_pb2.LoadAdapter,
        answer: "Future[worker_pb2.AdapterLoaded]",
        adapters: Adapters,
    ) -> None:
        """Files are read in one moment."""
        if self._processor.is_killed:
            return
        if read_adapter(Path(order.source)).digest in adapters.fatal:
            self._strike(self._loop.time(), "worker")
            return
        loaded, held = self._executor.load_adapter(order).result(), self._executor.held_adapters
        self.trace("worker", "has loaded", order.number, loaded.problem or loaded.digest.hex()[:8])
        assert sum(each.bytes for each in held) - loaded.bytes <= adapters.memory, "too many adapters"
        self._loading.remove(answer)
        answer.set_result(loaded)

    def drop_adapter(self, digest: bytes) -> None:
        """See StepRunner."""
        self._executor.drop_adapter(digest)

    @property
    def held_adapters(self) -> Sequence[worker_pb2.AdapterLoaded]:
        """See StepRunner."""
        self._processor.wait(inf, lambda: not self._loading)
        return self._executor.held_adapters

    def abandon(self) -> None:
        """See StepRunner."""
        if self.transfer is not None:
            self.transfer.stop_all()
        while self._executor._pending:
            self.finish()
        self._executor.abandon()
        assert not self._executor.rows.num_tokens.any(), "a row outlives its core"
        self._poisons.abandon()
        self._is_struck = False

    def _break_one_token(self, result: worker_pb2.StepResult) -> None:
        """A row has no logits to choose from, as when a model's numbers overflow."""
        token_ids = unpack_u32(result.token_ids)
        if token_ids:
            token_ids[self._random.randrange(len(token_ids))] = NO_TOKEN
            result.token_ids = pack_u32(token_ids)
