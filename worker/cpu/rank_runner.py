"""Executes the plans of a tensor-parallel group on one of its ranks.

A step begins when all ranks have its plan. A core that is killed between two sends leaves a plan at some
ranks only: then these drop it, with all behind it, and the next core adopts a group whose ranks have executed
the same steps. All ranks end a burst behind the same step: where rank 0 is interrupted.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING

import numpy as np

from pagewire.internal.v1 import worker_pb2
from worker.cpu.rank_peers import RankPeers
from worker.kv_transfer.transfer import BlockTransfer
from worker.loop import Compilation, StepRunner, never

if TYPE_CHECKING:
    from worker.parallel import ParallelGroup
    from worker.step.warmup_plans import Execute


class RankRunner:
    """A StepRunner around that of a rank."""

    def __init__(self, runner: StepRunner, ranks: RankPeers) -> None:
        self._runner, self._ranks = runner, ranks

    def launch(self, plan: worker_pb2.StepPlan, is_interrupted: Callable[[], bool] = never) -> None:
        """Raises EngineGone where another rank has lost the core without the plan; RankGone."""
        self._ranks.begin_step()
        try:
            self._runner.launch(plan, lambda: bool(self._ranks.of_first(is_interrupted())))
        except BaseException:
            self._ranks.abort()
            raise

    def seconds_left(self) -> float | None:
        return self._runner.seconds_left()

    def finish(self) -> worker_pb2.StepResult:
        """Of ranks other than the first, only when and for how long."""
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
