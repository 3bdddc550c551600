"""Executes the plans of a tensor-parallel group on one of its ranks.

A step begins when all ranks have its plan. A core that is killed between two sends leaves a plan at some
ranks only: then these drop it, with all behind it, and the next core adopts a group whose ranks have executed
the same steps. All ranks end a burst behind the same step: where rank 0 is interrupted.

Ranks that compute micro-batches are at different steps. So each says which plans it has as soon as they
arrive, also while earlier ones wait for their turn.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from pagewire.internal.v1 import worker_pb2
from worker.channel import EngineGone
from worker.cpu.rank_peers import RankPeers
from worker.kv_transfer.transfer import BlockTransfer
from worker.loop import Commands, Compilation, StepRunner, never

if TYPE_CHECKING:
    from worker.parallel import ParallelGroup
    from worker.step.warmup_plans import Execute


class AnnouncedCommands:
    """The commands of one core, whose plans this rank announces."""

    def __init__(self, commands: Commands, ranks: RankPeers) -> None:
        self._commands, self._ranks = commands, ranks
        self._arrived: deque[worker_pb2.WorkerCommand] = deque()
        self._is_over = False

    def send(self, message: worker_pb2.WorkerMessage) -> None:
        """Queues a message, which others are not told of."""
        self._commands.send(message)

    def has_command(self) -> bool:
        """Returns whether receive() would not wait; it does not behind the last command, either."""
        return bool(self._arrived) or self._is_over or self._commands.has_command()

    def receive(self, seconds: float | None) -> worker_pb2.WorkerCommand:
        """Returns the next command. Raises EngineGone behind all that has arrived."""
        while not self._is_over and self._commands.has_command():
            self._take(0.0)
        if not (self._arrived or self._is_over):
            self._take(seconds)
        if not self._arrived:
            raise EngineGone
        return self._arrived.popleft()

    def _take(self, seconds: float | None) -> None:
        try:
            command = self._commands.receive(seconds)
        except EngineGone:
            self._is_over = True
            return
        if command.HasField("step_plan"):
            self._ranks.announce_plan()
        self._arrived.append(command)


class RankRunner:
    """A StepRunner around that of a rank."""

    def __init__(self, runner: StepRunner, ranks: RankPeers) -> None:
        self._runner, self._ranks = runner, ranks

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        """Raises EngineGone where another rank has lost the core without the plan; RankGone."""
        self._ranks.begin_step(micro_batch=plan.micro_batch)
        with self._or_abort():
            self._runner.launch(plan, lambda: bool(self._ranks.of_first(is_interrupted())))

    @contextmanager
    def _or_abort(self) -> Iterator[None]:
        """Ends the group where something is raised."""
        try:
            yield
        except BaseException:
            self._ranks.abort()
            raise

    def awaits(self, plan: worker_pb2.StepPlan) -> bool:
        return self._runner.awaits(plan)

    def announcing(self, commands: Commands) -> Commands:
        """Returns the commands of one core, of which others are told."""
        return AnnouncedCommands(commands, self._ranks)

    def seconds_left(self) -> float | None:
        return self._runner.seconds_left()

    def finish(self) -> worker_pb2.StepResult:
        """Of ranks other than the first, only when and for how long."""
        with self._or_abort():
            result = self._runner.finish()
        if self._ranks.rank == 0:
            return result
        times = {name: getattr(result, name) for name in _TIMES}
        return worker_pb2.StepResult(step=result.step, **times)

    def compile_grammar(self, grammar: str) -> Compilation:
        return self._runner.compile_grammar(grammar)

    def load_adapter(self, order: worker_pb2.LoadAdapter) -> "Future[worker_pb2.AdapterLoaded]":
        return self._runner.load_adapter(order)

    def drop_adapter(self, digest: bytes) -> None:
        self._runner.drop_adapter(digest)

    @property
    def held_adapters(self) -> Sequence[worker_pb2.AdapterLoaded]:
        return self._runner.held_adapters

    @property
    def transfer(self) -> BlockTransfer | None:
        return self._runner.transfer

    def abandon(self) -> None:
        """Raises RankGone."""
        self._runner.abandon()
        self._ranks.leave_core()


def of_rank(runner: StepRunner, ranks: RankPeers | None) -> StepRunner:
    """Returns what executes the plans of a worker that has loaded. ranks: None: it is alone."""
    if ranks is None:
        return runner
    ranks.on_wait = None
    return RankRunner(runner, ranks)


def with_times_of_first(world: "ParallelGroup", execute: "Execute") -> "Execute":
    """Returns what executes steps whose durations are those of rank 0 on all ranks, as they decide how many
    steps are measured."""
    if world.size == 1:
        return execute

    def timed(plan: worker_pb2.StepPlan) -> worker_pb2.StepResult:
        result = execute(plan)
        result.duration_us = int(world.tell(np.array([result.duration_us]))[0])
        return result

    return timed


_TIMES = "started_ns", "duration_us", "prepare_us", "forward_us", "sample_us", "encode_us"
